"""Print the hash of the bits of two jitted scans of products and of a product alone, as JSON.

One scan has 100 small steps, the other columns that are too long for one launch to quantize them.
"""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np

import oracle
from jax_ozaki import Contract, dot

SCANS = ((100, 96, 96), (6, 2304, 48))  # steps, size, columns


@jax.jit
def chain(c, xs):
    def step(c, x):
        c = dot(x, c, contract=Contract.moduli(14))
        return c, c

    return jax.lax.scan(step, c, xs)


@jax.jit
def single(a, b):
    return dot(a, b, contract=Contract.moduli(14))


jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
found = hashlib.sha256()
for steps, size, columns in SCANS:
    xs = jnp.asarray(rng.standard_normal((steps, size, size)) / np.sqrt(size))
    for _ in range(3):  # command buffers are recorded, then replayed and updated
        results = *chain(jnp.eye(size, columns), xs), single(*xs[:2, :96, :96])
    for result in results:
        found.update(oracle.bits(result).tobytes())
print(json.dumps(found.hexdigest()))
