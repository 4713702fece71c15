"""Print the hash of the bits of a jitted scan of 100 products, as JSON."""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np

import oracle
from jax_ozaki import Contract, dot

STEPS, SIZE = 100, 96


@jax.jit
def chain(c, xs):
    def step(c, x):
        c = dot(x, c, contract=Contract.moduli(14))
        return c, c

    return jax.lax.scan(step, c, xs)


jax.config.update("jax_enable_x64", True)
xs = np.random.default_rng(0).standard_normal((STEPS, SIZE, SIZE)) / np.sqrt(SIZE)
for _ in range(3):  # command buffers are recorded, then replayed and updated
    results = chain(jnp.eye(SIZE), jnp.asarray(xs))
print(json.dumps(hashlib.sha256(b"".join(oracle.bits(x).tobytes() for x in results)).hexdigest()))
