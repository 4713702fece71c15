"""Batches of small matrices with vmap, checked against exact integer arithmetic.

Under Contract.normwise(2) every element keeps |C - AB| <= 2 u |a_i|_2 |b_j|_2, u = 2^-53, and an
element depends on its own row and column only: one vmap gives the bits of a loop.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_ozaki as jo

jax.config.update("jax_enable_x64", True)

BATCH = 32
CONTRACT = jo.Contract.normwise(2)


def integers(x):
    """``x`` as Python integers and the power of two they are to be multiplied by."""
    significand, exponent = np.frexp(x)
    lowest = int(exponent.min()) - 53
    shift = (exponent - 53 - lowest).astype(object)
    return (significand * 2.0**53).astype(np.int64).astype(object) << shift, lowest


def exact_error(a, b, c):
    """max over the elements of |C - AB| / (u |a_i|_2 |b_j|_2); the difference is formed exactly."""
    (a_int, ea), (b_int, eb), (c_int, ec) = integers(a), integers(b), integers(c)
    low = min(ea + eb, ec)
    difference = (c_int << (ec - low)) - ((a_int @ b_int) << (ea + eb - low))
    scale = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=0)
    return float(np.max(abs((difference).astype(float)) * 2.0 ** (low + 53) / scale))


def main():
    rng = np.random.default_rng(0)
    product = jax.jit(jax.vmap(lambda a, b: jo.matmul(a, b, contract=CONTRACT, return_report=True)))
    alone = jax.jit(lambda a, b: jo.matmul(a, b, contract=CONTRACT))
    print(f"{BATCH} products a size under {CONTRACT}; errors in u |a_i|_2 |b_j|_2, exact for the first two")
    print(f"{'n':>5}{'jax_ozaki':>12}{'jnp':>8}{'certified':>12}   vmap = loop")
    for n in (16, 24, 32, 48, 64, 96, 128):
        a, b = rng.standard_normal((2, BATCH, n, n))
        c, report = product(a, b)
        native = jnp.matmul(a, b)
        loop = np.stack([alone(x, y) for x, y in zip(a, b, strict=True)])
        same = np.array_equal(np.asarray(c).view(np.int64), loop.view(np.int64))
        errors = [max(exact_error(a[i], b[i], np.asarray(r[i])) for i in (0, 1)) for r in (c, native)]
        certified = float(np.max(report.achieved))
        print(f"{n:5}{errors[0]:12.3f}{errors[1]:8.3f}{certified:12.3f}   {same}")
        assert same, "a batched product differs from the product alone"
        assert report.achieved.shape == (BATCH,)
        assert errors[0] <= certified <= 2


if __name__ == "__main__":
    main()
