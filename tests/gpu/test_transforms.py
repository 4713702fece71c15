"""Transformations, sharing of quantizations and threads on the GPU."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
from compiled import calls, computations, hlo
from jax_ozaki import Contract
from oracle import assert_same_bits

dot = partial(jo.dot, contract=Contract.moduli(15))
RNG = np.random.default_rng(0)
X = RNG.standard_normal((9, 24, 24)) / 4
A, B = X[:2]
CT = RNG.standard_normal((24, 24))


def bilinear(a, b):
    """<CT, A B> by emulated products alone: XLA's own sums depend on the platform."""
    return jo.vdot(CT, dot(a, b))


def power(x):
    return jo.vdot(CT[:3, :3], dot(x, dot(x, x)))


TRANSFORMED = {
    "vmap": (jax.vmap(dot, (0, None)), X, B),
    "vmap of both": (jax.vmap(lambda a, b: dot(a.T, b), (1, 2)), X, X),
    "jvp": (lambda a, b: jax.jvp(dot, (a, b), (CT, a)), A, B),
    "grad": (jax.grad(bilinear, (0, 1)), A, B),
    "grad of vmap": (jax.grad(lambda a, b: jo.vdot(X, jax.vmap(dot, (0, None))(a, b)), (0, 1)), X, B),
    "hessian": (jax.hessian(power), X[0, :3, :3]),
    "scan": (lambda c, xs: jax.lax.scan(lambda c, x: (dot(x, c), c), c, xs), A, X),
    "remat": (jax.grad(jax.checkpoint(lambda a, b: bilinear(dot(a, b), b)), (0, 1)), A, B),
    "while": (lambda a: jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, dot(c[1], a)), (0, a))[1], A),
    "prepared": (lambda a, b: jo.matmul(jo.prepare(a, "lhs", Contract.normwise(2)), b), A, B),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations(agree, name):
    fn, *args = TRANSFORMED[name]
    agree(fn, *args)


@pytest.mark.parametrize(
    ("fn", "quantizations"),
    [
        (lambda a, b, c: dot(a, a.T), 1),
        (lambda a, b, c: dot(a, b) + dot(a, c), 3),
        (lambda a, b, c: (dot(a, b), dot(b.T, c)), 3),
    ],
    ids=["a a.T", "a b + a c", "a b, b.T c"],
)
def test_equal_quantizations_are_merged(gpu, fn, quantizations):
    text = hlo(fn, *jax.device_put(tuple(X[:3]), gpu))
    assert len(calls(text, "quantize")) == quantizations


def test_a_prepared_operand_is_quantized_outside_the_loop(gpu):
    def run(a, x):
        prepared = jo.prepare(a, "lhs", Contract.moduli(15))
        return jax.lax.fori_loop(0, 9, lambda _, x: jo.matmul(prepared, x), x)

    text = hlo(run, *jax.device_put((A, B[:, :7]), gpu))
    (body,) = set(re.findall(r"body=%?([\w.\-]+)", text))
    inside = calls(computations(text)[body], "quantize")
    assert inside and not any("u8[1,15,24," in call for call in inside)
    assert sum("u8[1,15,24," in call for call in calls(text, "quantize")) == 1


def test_a_report_reads_the_same(agree, gpu, cpu):
    def product(a, b):
        c, report = jo.dot(a, b, contract=Contract.normwise(2), return_report=True)
        counts = jnp.stack([report.nonfinite_rows, report.nonfinite_columns]).astype(jnp.float64)
        return (c, counts), report.achieved

    a = A.copy()
    a[3, 4] = np.nan
    _, counts = agree(lambda a, b: product(a, b)[0], a, B)
    assert counts.tolist() == [1, 0]
    # XLA's own arithmetic: not the same bits.
    achieved = [jax.jit(lambda a, b: product(a, b)[1])(*jax.device_put((A, B), device)) for device in (gpu, cpu)]
    np.testing.assert_allclose(*map(np.asarray, achieved), rtol=1e-12)


def test_two_threads_on_one_device(gpu, cpu):
    rng = np.random.default_rng(1)
    sizes = ((64, 300, 48), (200, 96, 130))
    problems = [generators.operands(rng, *s, batch=(30,), rows=generators.phi(2)) for s in sizes]
    product = jax.jit(dot)

    def all_of(operands, device):
        results = [product(*jax.device_put(pair, device)) for pair in zip(*operands, strict=True)]
        return np.stack(jax.device_get(results))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(all_of, problems, [gpu, gpu]))
    for on_gpu, operands in zip(found, problems, strict=True):
        assert_same_bits(on_gpu, all_of(operands, cpu))
