"""A workspace budget bounds memory and changes no bit."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
import oracle
from compiled import calls, hlo
from jax_ozaki import Contract
from oracle import assert_same_bits

N = 15
CONTRACT = Contract.moduli(N)


def matmul(a, b):
    return jo.matmul(a, b, contract=CONTRACT)


def blocked(fn, budget):
    def run(*args):
        with jo.default_workspace_bytes(budget):
            return jax.jit(fn)(*args)

    return run


def extents(blocks):
    return blocks.batch, blocks.m, blocks.n, blocks.k


# (batch, m, n, k), budget, and the axes of b m n k that must be blocked there.
CASES = [
    ((5, 20, 30, 40), 2**17, "b"),
    ((2, 30, 700, 50), 700_000, "bn"),
    ((1, 700, 30, 50), 700_000, "m"),
    ((1, 600, 600, 40), 900_000, "mn"),
    ((1, 9, 11, 3000), 250_000, "k"),
    ((3, 60, 100, 500), 400_000, "bnk"),
    ((2, 150, 130, 700), 330_000, "bmnk"),
    ((1, 3, 2, 2**18 + 1), 500_000, "k"),
]


@pytest.mark.parametrize(("sizes", "budget", "axes"), CASES, ids=str)
def test_blocks_change_no_bit(sizes, budget, axes):
    batch, m, n, k = sizes
    plan = jo.plan(m, n, k, batch=batch, contract=CONTRACT, workspace_bytes=budget)
    assert plan.workspace_bytes <= budget
    chosen = extents(plan.blocks)
    assert {axis for axis, block, size in zip("bmnk", chosen, sizes, strict=True) if block < size} == set(axes)

    rng = np.random.default_rng(k)
    a, b = generators.operands(rng, m, k, n, batch=(batch,), rows=generators.phi(2), columns=generators.tiny_tail)
    a[0, 1, 2], b[-1, 3, 0], a[-1, 0, 5] = np.inf, np.nan, 0
    whole = matmul(a, b)
    assert_same_bits(blocked(matmul, budget)(a, b), whole)
    rows, columns = np.array([0, 1, m - 1]), np.array([0, n - 1])
    sample = np.asarray(whole)[:, rows][..., columns]
    assert_same_bits(sample, oracle.product(a[:, rows], b[..., columns], N))


def test_blocks_of_transposed_operands():
    rng = np.random.default_rng(1)
    a, b = generators.operands(rng, 130, 300, 140)
    whole = matmul(a, b)
    for fn, x, y in (
        (lambda x, y: matmul(x.T, y), a.T.copy(), b),
        (lambda x, y: matmul(x, y.T), a, b.T.copy()),
        (lambda x, y: matmul(x.T, y.T), a.T.copy(), b.T.copy()),
    ):
        assert_same_bits(blocked(fn, 330_000)(x, y), whole)


def test_blocks_under_transformations():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((3, 20, 200)), rng.standard_normal((200, 30))
    mapped = jax.vmap(matmul, (0, None))
    gradient = jax.grad(lambda a, b: (mapped(a, b) ** 2).sum(), (0, 1))
    for budget in (210_000, 260_000):
        assert_same_bits(blocked(mapped, budget)(a, b), mapped(a, b))
        for x, y in zip(blocked(gradient, budget)(a, b), jax.jit(gradient)(a, b), strict=True):
            assert_same_bits(x, y)


def test_blocks_of_a_prepared_operand():
    rng = np.random.default_rng(3)
    a, b = generators.operands(rng, 100, 300, 110)
    for x, y in ((jo.prepare(a, "lhs", CONTRACT), b), (a, jo.prepare(b, "rhs", CONTRACT))):
        assert_same_bits(blocked(lambda x, y: jo.matmul(x, y), 330_000)(x, y), matmul(a, b))


def test_the_budget_is_part_of_the_jit_key():
    a = jnp.ones((40, 40))
    f = jax.jit(lambda a: matmul(a[None] * jnp.ones((6, 1, 1)), a))
    assert " while(" not in f.lower(a).compile().as_text()
    with jo.default_workspace_bytes(150_000):
        assert " while(" in f.lower(a).compile().as_text()
        assert jo.plan(240, 40, 40, contract=CONTRACT).workspace_bytes <= 150_000
    assert jo.plan(240, 40, 40, contract=CONTRACT).workspace_bytes > 150_000


def test_memory_stays_within_the_budget():
    sizes, budget = (400, 500, 600), 2**21
    m, n, k = sizes
    shapes = [jax.ShapeDtypeStruct(s, jnp.float64) for s in ((m, k), (k, n))]
    with jo.default_workspace_bytes(budget):
        compiled = jax.jit(matmul).lower(*shapes).compile()
    outputs_and_slices = 8 * (m * k + k * n + m * n)
    assert compiled.memory_analysis().temp_size_in_bytes <= 1.5 * budget + outputs_and_slices


def test_columns_are_quantized_once_for_all_rows():
    """Blocks of m lie inside those of n, so that only the rows are quantized again."""
    with jo.default_workspace_bytes(700_000):
        text = hlo(matmul, jnp.ones((700, 50)), jnp.ones((50, 30)))
    assert sum("u8[1,15,30,64]" in call for call in calls(text, "quantize")) == 1


@pytest.mark.parametrize("size", [0, -5, 1.5, True])
def test_budget_errors(size):
    with pytest.raises((TypeError, ValueError), match="workspace_bytes"), jo.default_workspace_bytes(size):
        pass
    with pytest.raises((TypeError, ValueError), match="workspace_bytes"):
        jo.plan(3, 3, 3, workspace_bytes=size)


def test_a_budget_below_the_smallest_blocks_is_an_error():
    with jo.default_workspace_bytes(1000), pytest.raises(ValueError, match="1000"):
        matmul(jnp.ones((100, 100)), jnp.ones((100, 100)))


def test_environment():
    program = "import jax_ozaki as jo; print(jo.plan(1000, 1000, 1000).workspace_bytes)"

    def run(value):
        environment = os.environ | {"JAX_OZAKI_WORKSPACE_BYTES": value}
        return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)

    assert 0 < int(run("5000000").stdout) <= 5_000_000
    failed = run("many")
    assert failed.returncode
    assert "JAX_OZAKI_WORKSPACE_BYTES='many'" in failed.stderr
