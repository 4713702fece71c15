"""The ablation kernels give the bits of ``Contract.moduli``: what they lose is time."""

from functools import partial

import jax
import numpy as np
import pytest

import generators
from jax_ozaki import Contract, matmul
from jax_ozaki._bench import ablation
from jax_ozaki._bench.operands import Shape
from jax_ozaki._bench.pipelines import Pipeline
from jax_ozaki._bench.unavailable import Unavailable
from oracle import assert_same_bits

NAMES = ("grouped-sync", "partial-crt-sync", "full-fused", "local-prologue")
CASES = (
    ("phi", Shape(128, 128, 128)),
    ("wide_exponents", Shape(300, 500, 257)),
    ("special", Shape(129, 131, 1000)),
    ("special", Shape(37, 41, 66, 3)),
    ("phi", Shape(1, 1, 1)),
    ("wide_exponents", Shape(5, 3, 4097)),
    ("phi", Shape(512, 384, 2048)),
)


@pytest.fixture(scope="module", autouse=True)
def built(gpu):
    try:
        ablation.require()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("moduli", [9, 14, 15])
@pytest.mark.parametrize(("family", "shape"), CASES, ids=str)
def test_bits_are_those_of_the_pipeline(family, shape, moduli):
    rng = np.random.default_rng(shape.k)
    rows = generators.phi(1) if family == "phi" else generators.wide_exponents
    a, b = rows(rng, shape.lhs), np.swapaxes(rows(rng, (*shape.rhs[:-2], shape.n, shape.k)), -1, -2).copy()
    if family == "special":
        a[..., -1, 0], b[..., -1, 0] = np.inf, np.nan
        a[..., 0, -1], b[..., 0, -1] = -np.inf, 0
    expected = np.asarray(jax.jit(partial(matmul, contract=Contract.moduli(moduli)))(a, b))
    for name in NAMES:
        found = np.asarray(jax.jit(Pipeline.of(name, moduli, shape).product)(a, b))
        assert_same_bits(found, expected, name)


@pytest.mark.parametrize(("name", "words"), [("full-fused", "built are 9, 14 and 15"), ("local-prologue", "at most")])
def test_what_a_kernel_does_not_have_is_said(name, words):
    a = np.ones((8, 8))
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        jax.jit(Pipeline.of(name, 17, Shape(8, 8, 8)).product)(a, a).block_until_ready()
