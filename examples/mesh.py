"""Principal components over a mesh: one program for one device, eight fake CPU devices, or all GPUs of a host.

    python examples/mesh.py
    XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu python examples/mesh.py

The samples lie in shards, so the Gram matrix X^T X contracts over the mesh; it stays in shards of its rows, and so
does its purification (A. M. N. Niklasson, Phys. Rev. B 66, 155115 (2002)) to the projector on the leading
components. Traces and norms are products too, so no sum is left whose order depends on the mesh: the digests of the
results' bits are the same on any number of devices.
"""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo

jax.config.update("jax_enable_x64", True)

SAMPLES, FEATURES, COMPONENTS, STEPS = 3000, 96, 7, 40


def samples():
    """Seven strong directions in unit noise."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((COMPONENTS, FEATURES))
    return rng.standard_normal((SAMPLES, COMPONENTS)) @ directions + rng.standard_normal((SAMPLES, FEATURES))


def total(x):
    return jo.dot(x, jnp.ones(x.shape[-1]))


def projector(gram):
    """The projector on the leading components: steps drive their eigenvalues to 1 and all others to 0."""
    p = gram / total(abs(gram)).max()  # eigenvalues in [0, 1]

    def step(_, p):
        squared = jo.dot(p, p)
        trace, trace_squared = total(jnp.diagonal(p)), total(jnp.diagonal(squared))
        raise_all = 2 * trace - trace_squared
        return jnp.where(abs(trace_squared - COMPONENTS) < abs(raise_all - COMPONENTS), squared, 2 * p - squared)

    return jax.lax.fori_loop(0, STEPS, step, p)


def digest(x):
    return hashlib.sha256(np.asarray(x).tobytes()).hexdigest()[:16]


def main():
    mesh = jax.make_mesh((len(jax.devices()),), ("devices",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, P("devices"))
    x = jax.device_put(samples(), rows)
    gram = jax.jit(lambda x: jo.dot(x.T, x), out_shardings=rows)(x)
    p = jax.jit(projector, out_shardings=rows)(gram)

    print(
        f"{len(jax.devices())} x {jax.devices()[0].device_kind}: X {x.shape} and X^T X {gram.shape} in shards of rows"
    )
    print(f"bits of X^T X {digest(gram)}, of the projector {digest(p)}")
    whole = np.asarray(p)
    _, vectors = np.linalg.eigh(np.asarray(gram))
    error = abs(whole - vectors[:, -COMPONENTS:] @ vectors[:, -COMPONENTS:].T).max()
    print(f"|P^2 - P| = {abs(whole @ whole - whole).max():.1e}, |P - eigenvectors' projector| = {error:.1e}")
    assert error < 1e-12


if __name__ == "__main__":
    main()
