"""Certified contracts: the ladder against its oracle, bit for bit, and what no bit may depend on."""

import bisect
import itertools
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import campaign
import generators
import jax_ozaki as jo
import ladder_oracle
from compiled import calls, hlo, jit_stages
from jax_ozaki import Contract, _ladder, _ladder_reference, _moduli, _rungs, _stages
from jax_ozaki._operand import Operand
from jax_ozaki._plan import Blocks
from oracle import assert_same_bits

HANDLERS = _stages.Handlers(lambda operand: 0)
DEFAULT = Contract.componentwise()


def climb_stages(stages, contract, a, b):
    """The product of rows a[b, m, k] and columns b[b, n, k], and the decided rungs."""
    lhs, rhs = (_stages.Rows(Operand(x, "brk")) for x in (a, b))
    blocks = Blocks(a.shape[0], a.shape[1], b.shape[1], a.shape[2])
    certified = (_ladder.certified(stages, rows, contract) for rows in (lhs, rhs))
    found = _ladder.decide(stages, lhs.operand, rhs.operand, *certified, contract)
    return _ladder.product(stages, lhs, rhs, contract, blocks, budget=1 << 40), found


climb = jit_stages(climb_stages, static_argnums=(1,))


def problems(rng, m, k, n, repeats=2):
    """Every family, and those of the campaign, as one batch; rows and columns."""
    names = list(generators.FAMILIES)
    pairs = [(x, names[rng.integers(len(names))]) for x in names for _ in range(repeats)]
    ours = [
        generators.operands(rng, m, k, n, rows=generators.FAMILIES[x], columns=generators.FAMILIES[y]) for x, y in pairs
    ]
    theirs = [family(rng, (1, m, k), (1, n, k)) for family in campaign.FAMILIES.values()]
    a = [x for x, _ in ours] + [np.asarray(x)[0] for x, _ in map(tuple, theirs)]
    theirs = [family(rng, (1, m, k), (1, n, k)) for family in campaign.FAMILIES.values()]
    b = [y.T for _, y in ours] + [np.asarray(y)[0] for _, y in map(tuple, theirs)]
    return np.stack(a), np.stack(b)


def assert_same_decisions(found, expected):
    for (path, x), y in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("contract", "sizes"),
    [
        (DEFAULT, (5, 37, 6)),
        (Contract.componentwise("k"), (9, 140, 7)),
        (Contract.componentwise(1.25), (4, 1100, 5)),
        (Contract.exact(), (5, 37, 6)),
    ],
    ids=str,
)
def test_handlers_reference_and_oracle_agree(contract, sizes):
    m, k, n = sizes
    a, b = problems(np.random.default_rng(k), m, k, n)
    c, found = jax.device_get(climb(HANDLERS, contract, a, b))
    expected, defined = jax.device_get(climb(_ladder_reference, contract, a, b))
    assert_same_bits(c, expected)
    assert_same_decisions(found, defined)
    if contract.kind == "exact":
        for i in range(len(a)):
            assert_same_bits(c[i], ladder_oracle.exact_product(a[i], b[i].T))
        return
    assert set(np.unique(found.rung)) == {0, 1, 2, 3, 4}
    factor, count = contract.error_factor(k), contract.modulus_count(k)
    for i in range(len(a)):
        product, rung = ladder_oracle.product(a[i], b[i].T, factor, count)
        np.testing.assert_array_equal(found.rung[i, :, :n], rung)
        assert found.worst[i].max() == ladder_oracle.rungs(a[i], b[i].T, factor, count)[1]
        assert_same_bits(c[i], product)


def test_the_definition_optimized():
    """As platforms without handlers compile it: no certificate and no bit of a sum depends on how."""
    a, b = problems(np.random.default_rng(37), 5, 37, 6)
    optimized = jax.jit(climb_stages, static_argnums=(0, 1))
    for x, y in zip(
        jax.tree.leaves(optimized(_ladder_reference, DEFAULT, a, b)),
        jax.tree.leaves(climb(HANDLERS, DEFAULT, a, b)),
        strict=True,
    ):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("bits", [1, 4, 9, 15, 22, 30, 41, 53])
def test_the_moduli_that_norms_need(bits):
    """As many as hold the longest row times the longest column of a batch element, but for the logarithms' rounding."""
    rng = np.random.default_rng(bits)
    shifts = np.minimum([0, 6, 12], bits - 1)[:, None, None]
    a, b = (
        rng.integers(-(2**bits), 2**bits, (3, rows, 70)) >> shift for rows, shift in ((5, shifts), (140, shifts[::-1]))
    )
    scaled = [np.ldexp(x.astype(float), rng.integers(-300, 300, (3, x.shape[1], 1))) for x in (a, b)]
    _, found = jax.device_get(climb(HANDLERS, DEFAULT, *scaled))
    assert_same_decisions(found, jax.device_get(climb(_ladder_reference, DEFAULT, *scaled))[1])

    def longest(x):
        return (x.astype(object) ** 2).sum(-1).max(-1)

    squared = max(Fraction(int(product)) for product in longest(a) * longest(b))

    def needed(squared, most):
        bounds = [
            Fraction(mantissa) * Fraction(2) ** exponent for mantissa, exponent in map(_moduli.bound, range(2, most))
        ]
        return 2 + sum(squared > bound**4 for bound in bounds)

    # Rows that are rounded are as long as the moduli hold.
    most_moduli = DEFAULT.modulus_count(70), DEFAULT.wide_modulus_count(70)
    for count, most in zip(found.needs, most_moduli, strict=False):
        assert needed(squared, most) <= count[0] <= needed(squared * Fraction(5, 4), most)


@pytest.mark.parametrize("stages", [HANDLERS, _ladder_reference], ids=["handlers", "reference"])
@pytest.mark.parametrize(("rows", "columns"), [*itertools.product(generators.STRUCTURED, repeat=2)])
def test_rows_and_columns_that_share_few_parts_of_k(stages, rows, columns):
    """What they do not share is no error: sums of zeros are certified by coarse magnitudes, whatever they keep."""
    rng = np.random.default_rng(11)
    m, k, n = 7, 1700, 9
    families = generators.STRUCTURED[rows], generators.STRUCTURED[columns]
    a, b = generators.operands(rng, m, k, n, rows=families[0], columns=families[1])
    factor, count = DEFAULT.error_factor(k), DEFAULT.modulus_count(k)
    c, found = jax.device_get(climb(stages, DEFAULT, a[None], b.T[None]))
    product, rung = ladder_oracle.product(a, b, factor, count)
    np.testing.assert_array_equal(found.rung[0, :, :n], rung)
    assert found.worst.max() == ladder_oracle.rungs(a, b, factor, count)[1]
    assert_same_bits(c[0], product)
    assert campaign.measure(c[0], a, b) <= 1 + float(found.worst.max()) * (1 + 2**-16) + k * 2**-38 <= factor
    shared = ladder_oracle.overlap(a, b)
    assert (rung[shared == 0] == 1).all() and not c[0][shared == 0].any()
    rows_parts, columns_parts = (np.bitwise_or.reduce(ladder_oracle.oracle.occupancy(x)) for x in (a, b.T))
    word, tile = f"{int(rows_parts & columns_parts):064b}", int(found.tiles[0, 0, 0])
    skipped = (len(word) - len(word.rstrip("0")), len(word) - len(word.lstrip("0"))) if "1" in word else (0, 63)
    assert (tile >> 8 & 255, tile >> 16) == skipped


def test_long_contractions_take_a_part_of_k():
    """Every second block of 64 from k = 1024, every fourth from 4096; the fine planes beyond 2^17."""
    rng = np.random.default_rng(5)
    for k in (1023, 1024, 4095, 4096, 2**16, 2**16 + 1, 2**17, 2**17 + 1, 2**18 + 65, 2**20 - 1):
        for planes, step, longest in ((1, ladder_oracle.coarse_step(k), 2**15), (4, ladder_oracle.fine_step(k), 2**17)):
            assert _rungs.plane_step(k, planes) == step
            assert _rungs.kept(k, step) == ladder_oracle.subset(k, step).sum() <= longest
    k = 2**18 + 65
    a, b = rng.standard_normal((2, 1, 2, k))
    b[0, 1, : k // 2] = 0
    a[0, 0, k // 2 :] = 0
    c, found = jax.device_get(climb(HANDLERS, DEFAULT, a, b))
    product, rung = ladder_oracle.product(a[0], b[0].T, DEFAULT.error_factor(k), DEFAULT.modulus_count(k))
    assert_same_bits(c[0], product)
    np.testing.assert_array_equal(found.rung[0, :, :2], rung)
    assert rung[0, 1] == 4  # a sum of zeros, of which the masks see a part only


def mixed(rng, m, k, n):
    """Rows and columns for every rung."""
    a, b = generators.operands(rng, m, k, n)
    a[1 % m :: 5] *= np.exp(4 * rng.standard_normal(a[1 % m :: 5].shape))
    a[3 % m :: 7] = np.ldexp(a[3 % m :: 7], rng.integers(-200, 200, a[3 % m :: 7].shape))
    b[: k // 2, 2 % n :: 3] = 0
    a[4 % m :: 6, k // 2 :] = 0
    b[:, 3 % n] *= np.exp(3 * rng.standard_normal(k))
    a[m - 1, 0] = np.inf
    return a, b


@partial(jax.jit, static_argnums=2)
def matmul(a, b, contract=DEFAULT):
    return jo.matmul(a, b, contract=contract)


@pytest.mark.parametrize("contract", [DEFAULT, Contract.exact()], ids=str)
def test_outputs_depend_on_their_row_and_column_only(contract):
    """Tiles, neighbours, permutations, transposition, batches and blocks change no bit."""
    rng = np.random.default_rng(1)
    m, k, n = 150, 60, 270
    a, b = mixed(rng, m, k, n)
    whole = np.asarray(matmul(a, b, contract))
    _, report = jo.matmul(a, b, contract=contract, return_report=True)
    used = np.asarray(report.rungs) > 0
    assert used.all() if contract == DEFAULT else used.tolist() == [True, False, False, True]

    rows, columns = rng.permutation(m), rng.permutation(n)
    assert_same_bits(matmul(a[rows], b[:, columns], contract), whole[rows][:, columns], "permuted")
    assert_same_bits(np.asarray(matmul(b.T, a.T, contract)).T, whole, "transposed")
    assert_same_bits(matmul(a[:40, :], b[:, 100:103], contract), whole[:40, 100:103], "alone")
    order = rng.permutation(k)
    assert_same_bits(
        matmul(a[:, order], b[order], Contract.exact()), matmul(a, b, Contract.exact()), "exact sums have no order"
    )
    stacked = jax.jit(jax.vmap(lambda x: jo.matmul(x, b, contract=contract)))(a.reshape(3, 50, k))
    assert_same_bits(np.asarray(stacked).reshape(m, n), whole, "vmap")
    both = jax.vmap(lambda x, y: jo.dot(x, y, contract=contract))(a[:40], b[:, :40].T)
    assert_same_bits(both, np.diag(whole[:40, :40]), "vmap of vectors")
    for budget, axes in ((1_100_000, "n"), (330_000, "mnk")):
        plan = jo.plan(m, n, k, contract=contract, workspace_bytes=budget)
        with jo.default_workspace_bytes(budget):
            blocked, of_blocks = jax.jit(partial(jo.matmul, contract=contract, return_report=True))(a, b)
        assert plan.workspace_bytes <= budget, axes
        assert_same_bits(blocked, whole, f"blocks {plan.blocks}")
        for x, y in zip(jax.tree.leaves(of_blocks), jax.tree.leaves(report), strict=True):
            np.testing.assert_array_equal(x, y)


def test_blocks_of_k():
    a, b = mixed(np.random.default_rng(2), 9, 3000, 11)
    with jo.default_workspace_bytes(330_000):
        assert jo.plan(9, 11, 3000, contract=DEFAULT).blocks.k < 3000
        blocked = jax.jit(lambda a, b: jo.matmul(a, b, contract=DEFAULT))(a, b)
    assert_same_bits(blocked, matmul(a, b))


@pytest.mark.parametrize("contract", [DEFAULT, Contract.exact()], ids=str)
def test_transformations(contract):
    rng = np.random.default_rng(3)
    a, b = mixed(rng, 7, 20, 6)
    a[-1, 0] = 1
    ct = rng.standard_normal((7, 6))
    dot = partial(jo.matmul, contract=contract)
    c, vjp = jax.vjp(dot, a, b)
    assert_same_bits(c, matmul(a, b, contract))
    for found, expected in zip(vjp(ct), (dot(ct, b.T), dot(a.T, ct)), strict=True):
        assert_same_bits(found, expected)
    _, tangent = jax.jvp(lambda a: dot(a, b), (a,), (2 * a,))
    assert_same_bits(tangent, dot(2 * a, b))
    _, scanned = jax.lax.scan(lambda _, row: (None, dot(row, b)), None, a)
    assert_same_bits(scanned, c)
    assert_same_bits(jax.checkpoint(dot)(a, b), c)
    for x, y in ((jo.prepare(a, "lhs", contract), b), (a, jo.prepare(b, "rhs", contract))):
        assert_same_bits(jo.matmul(x, y), c)
    prepared = jo.prepare(a, "lhs", contract)
    gradient = jax.grad(lambda p: jo.matmul(p, b).sum(), allow_int=True)(prepared).array
    assert_same_bits(gradient, dot(np.ones((7, 6)), b.T))
    with jo.default_workspace_bytes(40_000):
        assert_same_bits(jax.jit(jo.matmul)(prepared, b), c)


def test_shards_stay_local():
    devices = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    a, b = mixed(np.random.default_rng(4), 12, 20, 8)
    expected = matmul(a, b)
    for left, right in ((P("x"), P()), (P(), P(None, "x")), (P(None, "x"), P("x"))):
        x, y = (jax.device_put(z, NamedSharding(devices, spec)) for z, spec in ((a, left), (b, right)))
        assert_same_bits(matmul(x, y), expected)
        gathers = "all-gather" in matmul.lower(x, y).compile().as_text()
        assert gathers == (left == P(None, "x"))


@pytest.mark.parametrize("contract", [DEFAULT, Contract.exact()], ids=str)
def test_sizes_without_elements(contract):
    for m, k, n in ((0, 3, 2), (2, 3, 0), (2, 0, 3)):
        c, report = jo.matmul(np.ones((m, k)), np.ones((k, n)), contract=contract, return_report=True)
        assert_same_bits(c, np.zeros((m, n)))
        assert report.rungs.sum() == 0
        assert report.achieved == 1
    assert jo.matmul(np.full((1, 1), 3.0), np.full((1, 1), 1 / 3), contract=contract)[0, 0] == 1


def test_few_bits_need_few_moduli():
    rng = np.random.default_rng(6)
    k = 64

    def count(a, b, contract=DEFAULT):
        c, report = jo.matmul(a, b, contract=contract, return_report=True)
        assert_same_bits(c, ladder_oracle.exact_product(a, b))
        assert report.achieved == 1
        return int(report.moduli)

    int8, int16 = (rng.integers(-(2**bits), 2**bits, (2, 9, k)).astype(float) for bits in (7, 15))
    float32 = rng.standard_normal((2, 9, k), np.float32).astype(float)
    mask = (rng.random((2, 9, k)) < 0.5).astype(float)
    counts = [count(x[0], x[1].T) for x in (mask, int8, int16, float32)]
    assert counts == sorted(counts)
    assert counts[0] == 2 and counts[1] <= 4 and counts[2] <= 6 and 8 < counts[3] < DEFAULT.modulus_count(k)
    assert count(int8[0], int8[1].T, Contract.exact()) == counts[1]
    assert count(np.zeros((2, 3)), np.ones((3, 2))) == 2


@pytest.mark.parametrize("stages", [HANDLERS, _ladder_reference], ids=["handlers", "reference"])
@pytest.mark.parametrize("k", [1100, 2050])
def test_rows_that_fewer_moduli_hold_but_for_few_elements(stages, k):
    """They take that scale, their certificates count those elements, and their products multiply fewer moduli."""
    rng = np.random.default_rng(k)
    m, n, factor, moduli = 9, 4, DEFAULT.error_factor(k), DEFAULT.modulus_count(k)
    fewer = DEFAULT.fewer(k)
    assert tuple(fewer) == ladder_oracle.few(k, factor, moduli) and fewer.moduli < moduli
    a, b = generators.operands(rng, m, k, n, rows=generators.few_tiny, columns=generators.few_tiny)
    scale, rounded = (
        np.asarray(x) for x in ladder_oracle.row_scales(a, ladder_oracle.oracle.statistics(a), moduli, fewer)
    )
    assert set(rounded) >= {0, 1, 2, k}  # the last rows have too many
    lhs = _stages.Rows(Operand(jnp.asarray(a[None]), "brk"))
    found = jit_stages(lambda stages: _ladder.certified(stages, _ladder.quantize(stages, lhs, DEFAULT), DEFAULT)[:2])(
        stages
    )
    np.testing.assert_array_equal(found[0][0], scale)
    np.testing.assert_array_equal(found[1][0, :, 6], rounded)
    c, decided = climb(stages, DEFAULT, a[None], b.T[None])
    assert_same_bits(c[0], ladder_oracle.product(a, b, factor, moduli)[0])
    assert fewer.moduli < decided.needs.first <= moduli  # for the last rows
    _, decided = climb(stages, DEFAULT, a[None, rounded != k], a[None, rounded != k])
    assert decided.needs.first == fewer.moduli


def test_float32_values_multiply_fewer_moduli():
    rng = np.random.default_rng(9)
    k = 1100
    a, b = rng.standard_normal((2, 5, k), np.float32).astype(float)
    _, report = jo.matmul(a, b.T, return_report=True, contract=DEFAULT)
    assert report.rungs.tolist() == [25, 0, 0, 0]
    assert report.moduli <= DEFAULT.fewer(k).moduli == 13
    _, report = jo.matmul(a, rng.standard_normal((k, 5)), return_report=True, contract=DEFAULT)
    assert DEFAULT.fewer(k).moduli <= report.moduli < DEFAULT.modulus_count(k)


def test_rows_as_long_as_fewer_moduli_hold():
    """Exact integers of the largest norm that they hold multiply no more; those of the next larger norm do."""
    k = 1100
    moduli = DEFAULT.fewer(k).moduli

    def fits(value):
        statistics = ladder_oracle.oracle.statistics(np.full((1, k), float(value)))
        return ladder_oracle.oracle.scales(statistics, moduli)[0] == 0

    largest = 2 * bisect.bisect_left(range(1, 2**53, 2), True, key=lambda value: not fits(value)) - 1
    assert fits(largest) and not fits(largest + 2)
    for value, count in ((largest, moduli), (largest + 2, moduli + 1)):
        a = np.full((2, k), float(value))
        c, report = jo.matmul(a, a.T, return_report=True, contract=DEFAULT)
        assert_same_bits(c, ladder_oracle.exact_product(a, a.T))
        assert report.moduli == count


def test_report_and_product_share_their_stages():
    a, b = generators.operands(np.random.default_rng(7), 20, 30, 40)
    text = hlo(lambda a, b: jo.matmul(a, b, contract=DEFAULT, return_report=True), a, b)
    stages = [
        "quantize",
        "planes",
        "magnitude",
        "certify",
        "certify_fine",
        "ladder_mma",
        "ladder_combine",
        "ladder_sum",
    ]
    assert [len(calls(text, stage)) for stage in stages] == [2, 2, 2, 1, 1, 2, 2, 1]


def test_reports_of_batches():
    a, b = campaign.operands("phi 0..8", 6, 19, np.random.default_rng(8))
    reporting = partial(jo.matmul, contract=DEFAULT, return_report=True)
    _, mapped = jax.vmap(reporting)(a, b)
    for i in range(6):
        _, one = reporting(a[i], b[i])
        for x, y in zip(jax.tree.leaves(mapped), jax.tree.leaves(one), strict=True):
            np.testing.assert_array_equal(x[i], y)
    _, unmapped = jax.vmap(reporting, (0, None))(a, b[2])

    for i in range(6):
        for x, y in zip(jax.tree.leaves(unmapped), jax.tree.leaves(reporting(a[i], b[2])[1]), strict=True):
            np.testing.assert_array_equal(x[i], y)
    _, whole = reporting(a, b)
    np.testing.assert_array_equal(whole.rungs, mapped.rungs.sum(0))
    assert whole.achieved == mapped.achieved.max()
    assert whole.moduli == mapped.moduli.max()
    assert f"{int(whole.rungs[3])} by sums of products" in str(whole)


def test_a_slice_of_the_campaign(capsys):
    """As ``make campaign``, on fewer products."""
    count, violations = campaign.campaign(1300, seed=1, batch=50, lengths=(19,), contracts=(DEFAULT, Contract.exact()))
    assert count >= 1300
    assert violations == 0
    long_sums = campaign.campaign(52, seed=2, batch=4, lengths=(601,), contracts=(DEFAULT,))
    assert long_sums == (52, 0)
    assert "A D, D^-1 B" in capsys.readouterr().out


# The contracts as values.


def test_modulus_counts():
    counts = {
        c: [Contract.componentwise(c).modulus_count(k) for k in (1, 64, 1024, 2**14, 2**20)] for c in ("sqrt_k", "k", 2)
    }
    assert counts["sqrt_k"] == [15] * 5
    assert counts["k"] == [15, 14, 14, 13, 12]
    assert counts[2] == sorted(counts[2]) and counts[2][2] in (16, 17)
    assert DEFAULT.wide_modulus_count(64) == 20
    assert Contract.componentwise(1 + 2.0**-20).modulus_count(64) == 20
    with pytest.raises(ValueError, match="cannot be kept"):
        Contract.componentwise(1 + 2.0**-30).modulus_count(2**10)


def test_texts():
    for text in ("componentwise(sqrt_k)", "componentwise(1.5)", "componentwise(k)", "exact"):
        assert str(Contract.parse(text)) == text
    assert Contract.parse("componentwise") == Contract.parse("componentwise()") == DEFAULT
    assert Contract.parse("exact()") == Contract.exact()
    for text in ("exact(3)", "componentwise(1)", "componentwise(x)", "exact("):
        with pytest.raises(ValueError, match="is not a contract"):
            Contract.parse(text)
    plan = jo.plan(100, 100, 64, contract=DEFAULT)
    assert (plan.moduli, plan.rungs[1]) == (15, "20 moduli, certified")
    assert "integer sums" in str(plan) and "|A||B|" in str(plan)
    assert jo.plan(3, 3, 3, contract=Contract.moduli(5)).rungs == ()


def test_explain():
    a, b = generators.operands(np.random.default_rng(9), 20, 30, 25)
    assert "500 of 500 outputs certified by coarse magnitudes" in jo.explain(a, b)
    a[17] = np.ldexp(a[17], np.where(np.arange(30) < 15, 140, -150))
    b[:15] = 0
    text = jo.explain(a, b)
    assert "25 of 500 outputs summed as integers" in text
    assert "row 17 spans 3" in text and "too few for 25 of its 25 outputs" in text
    assert len(text.splitlines()) == 1
    a[2, 0] = np.nan
    assert "1 rows and 0 columns hold NaN or Inf" in jo.explain(a, b)
    assert "row 17 spans" in jo.explain(a, b, Contract.mantissa())
    assert "exactly" in jo.explain(np.ones((2, 3)), np.ones(3), Contract.mantissa())
    assert "XLA" in jo.explain(a, b, Contract.native())
    with pytest.raises(TypeError, match="b is traced"):
        jax.jit(lambda b: jo.explain(a, b))(b)
    with pytest.raises(ValueError, match="contracted sizes differ"):
        jo.explain(a, a)


def test_the_smallest_c_of_sums():
    """Sums of integers alone: a relative error of k 2^-39 u at most, and it is reported."""
    a = np.array([[1, 2.0**-100, 2.0**-400]])
    b = np.array([[2.0**-500, 2.0**100, 2.0**399]]).T
    c, report = jo.matmul(a, b, contract=DEFAULT, return_report=True)
    assert c[0, 0] == 1.5
    assert report.rungs.tolist() == [0, 0, 0, 1]
    assert Fraction(1) < Fraction(float(report.achieved)) < 1 + Fraction(4, 2**39)
