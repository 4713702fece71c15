"""Contracts: what they promise holds in exact arithmetic; plans; defaults; errors."""

import itertools
import math
import os
import subprocess
import sys
import threading
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generators
import jax_ozaki as jo
import ladder_oracle
import oracle
from jax_ozaki import Contract
from oracle import assert_same_bits

ORDINARY = {
    name: generators.FINITE[name] for name in generators.FINITE if name not in ("near overflow", "wide exponents")
}
CONTRACTS = [Contract.moduli(2), Contract.moduli(20), Contract.mantissa(), Contract.mantissa(24), Contract.normwise(2), Contract.normwise(1.5), Contract.normwise("sqrt_k"), Contract.normwise("k"), Contract.componentwise(), Contract.exact(), Contract.native()]  # fmt: skip


@partial(jax.jit, static_argnums=2)
def dot(a, b, contract):
    return jo.matmul(a, b, contract=contract)


# Every modulus count.


def largest_errors(a, b, counts):
    for n in counts:
        c = np.asarray(dot(a, b, Contract.moduli(n)))
        assert np.isfinite(c).all()
        yield oracle.errors(c, a, b).max()


def test_errors_fall_with_every_modulus():  # case 2
    """Down to the final rounding of 2^-53."""
    rng = np.random.default_rng(2)
    a, b = generators.operands(rng, 9, 30, 8, rows=generators.phi(1), columns=generators.phi(1))
    exact = abs(oracle.integers(a) @ oracle.integers(b)).max()
    errors = list(largest_errors(a, b, oracle.COUNTS))
    final = exact // 2**53
    for fewer, more in itertools.pairwise(errors):
        assert more <= max(fewer // 2, final)
    assert errors[0] > 2**40 * final
    assert errors[-1] <= final


@pytest.mark.parametrize("n", [1, 21, 0, -3, 2.5, True, "x", None])
def test_other_counts_are_errors(n):  # case 2
    with pytest.raises((ValueError, TypeError)):
        Contract.moduli(n)


@pytest.mark.parametrize("n", oracle.COUNTS)
def test_a_contraction_that_is_too_long_is_an_error(n):
    """H <= sqrt(k) leaves no room for a rounding."""
    h, eh = oracle.bound(n)
    longest = math.floor((Fraction(h) * Fraction(2) ** eh) ** 2)
    assert Contract.moduli(n).modulus_count(longest // 4) == n
    with pytest.raises(ValueError, match=r"moduli"):
        Contract.moduli(n).modulus_count(2 * longest)
    if n == 2:
        long = jax.ShapeDtypeStruct((2 * longest,), jnp.float64)
        with pytest.raises(ValueError, match=r"moduli"):
            jax.eval_shape(partial(jo.dot, contract=Contract.moduli(2)), long, long)


# mantissa(bits)


@pytest.mark.parametrize(("bits", "longest"), [(8, 2**17), (24, 2**17), (53, 2**17), (60, 2**17), (70, 2**10)])
def test_mantissa_keeps_its_bits(bits, longest):
    """Each element to 2^-bits of its row's maximum, on constant rows and at the k where N steps up."""
    contract = Contract.mantissa(bits)
    rng = np.random.default_rng(bits)
    for k in edges(contract, 1, longest):
        n = contract.modulus_count(k)
        constant = np.full((4, k), 1.0) * (2 - rng.random((4, 1)))
        constant[0], constant[1] = np.nextafter(2, 1), 1.0
        constant[1, 0] = 1 / 3
        for rows in (constant, rng.uniform(0.5, 1, (3, k)), rng.standard_normal((3, k))):
            scale = oracle.scales(oracle.statistics(rows), n)
            for row, mu in zip(rows, scale, strict=True):
                kept = oracle.quantize(row[None], mu[None])[0] << (oracle.UNIT - int(mu))
                exact = oracle.integers(row)
                assert abs(kept - exact).max() << bits <= abs(exact).max()


def edges(contract, low, high):
    """k = low, high and both sides of every step of the modulus count between them."""
    found = [low]
    while contract.modulus_count(low) < contract.modulus_count(high):
        inside, outside = low, high
        while outside - inside > 1:
            middle = (inside + outside) // 2
            if contract.modulus_count(middle) == contract.modulus_count(low):
                inside = middle
            else:
                outside = middle
        found += [inside, outside]
        low = outside
    return sorted({*found, high})


def test_mantissa_counts():
    """Those of README."""
    counts = {k: Contract.mantissa(53).modulus_count(k) for k in (11, 2036, 2037, 401169, 401170)}
    assert counts == {11: 15, 2036: 15, 2037: 16, 401169: 16, 401170: 17}
    counts = {k: Contract.mantissa(53).modulus_count(k, complex) for k in (72, 819, 820, 72979, 72980)}
    assert counts == {72: 16, 819: 16, 820: 17, 72979: 17, 72980: 18}
    counts = (
        [Contract.mantissa(53).modulus_count(k) for k in range(12)],
        [Contract.mantissa(53).modulus_count(k, complex) for k in range(73)],
    )
    assert [max(of) for of in counts] == [15, 16]
    for bits in range(2, 70):
        assert Contract.mantissa(bits).modulus_count(64) >= Contract.mantissa(bits - 1).modulus_count(64)


@pytest.mark.parametrize(
    ("contract", "dtype", "longest"),
    [
        (Contract.normwise(2), float, 1051056400),
        (Contract.normwise(2), complex, 290752925),
        (Contract.moduli(2), float, 32041),
    ],
)
def test_longest_contractions(contract, dtype, longest):
    """Those of README."""
    assert contract.modulus_count(longest, dtype) and Contract.componentwise().modulus_count(2**45)
    with pytest.raises(ValueError, match=f"k={longest + 1}"):
        contract.modulus_count(longest + 1, dtype)


@pytest.mark.parametrize(
    "contract",
    [Contract.mantissa(8), Contract.mantissa(53), Contract.mantissa(70), Contract.normwise(2), Contract.normwise("k")],
    ids=str,
)
def test_a_contract_is_its_modulus_count(contract):
    a, b = generators.operands(np.random.default_rng(5), 7, 50, 6, rows=generators.phi(1))
    assert_same_bits(dot(a, b, contract), oracle.product(a, b, contract.modulus_count(50)))


# normwise(c)


def norms(a, b):
    """Squared norm2(a_i) norm2(b_j) in units of 2^-4UNIT."""
    return (oracle.integers(a) ** 2).sum(1)[:, None] * (oracle.integers(b) ** 2).sum(0)


def holds_normwise(c, a, b, factor):
    """|C - AB| <= factor u norm2 norm2 + 2^-1075 in exact arithmetic."""
    rounding = 1 << (2 * oracle.UNIT - 1075)
    error = np.maximum(oracle.errors(c, a, b) - rounding, 0)
    squared = Fraction(factor) ** 2
    return (error**2 * squared.denominator << 106) <= squared.numerator * norms(a, b)


@pytest.mark.parametrize("c", [1.001, 1.5, 2.0, 10.0, 1e6, 1e30, "sqrt_k", "k"])
def test_normwise_bound(c):
    contract = Contract.normwise(c)
    for k in (1, 3, 128, 400):
        n = contract.modulus_count(k)
        factor = {"sqrt_k": 1 + math.isqrt(k * 10**20) / 10**10, "k": 1 + k}.get(c, c)
        rng = np.random.default_rng(k)
        a, b, pairs = generators.problems(rng, len(ORDINARY), 4, k, 3, moduli=n, families=ORDINARY)
        for x, y, z, pair in zip(a, b, np.asarray(dot(a, b, contract)), pairs, strict=True):
            assert holds_normwise(z, x, y, factor).all(), (pair, k, n)


def test_normwise_is_not_wasteful():
    """One modulus fewer breaks the bound on some data: the count is within one of the smallest."""
    rows = generators.half_rows
    for c, k in ((2.0, 400), ("k", 400)):
        n = Contract.normwise(c).modulus_count(k)
        factor = 1 + k if c == "k" else c
        a, b = generators.operands(np.random.default_rng(1), 8, k, 8, rows=rows, columns=rows, moduli=n - 2)
        broken = ~holds_normwise(oracle.product(a, b, n - 2), a, b, factor)
        assert broken.any()


def test_looser_contracts_take_fewer_moduli():
    counts = [Contract.normwise(c).modulus_count(1000) for c in (1.001, 1.01, 2, 100, "k", 1e5, 1e20)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[2] > counts[-1]
    assert Contract.normwise("sqrt_k").modulus_count(10**4) <= Contract.normwise(2).modulus_count(10**4)


# The type.


@pytest.mark.parametrize(
    "make",
    [
        lambda: Contract.normwise(1), lambda: Contract.normwise(0.5), lambda: Contract.normwise(math.nan), lambda: Contract.normwise(math.inf),
        lambda: Contract.normwise("k2"), lambda: Contract.mantissa(0), lambda: Contract.mantissa(1000), lambda: Contract("moduli", 99), lambda: Contract("foo"), lambda: Contract("native", 1),
        lambda: Contract.parse("moduli"), lambda: Contract.parse("moduli(1)"), lambda: Contract.parse("moduli(3"), lambda: Contract.parse("native(3)"),
        lambda: Contract.parse(""), lambda: Contract.parse("exactly"), lambda: Contract.parse("mantissa(x)"), lambda: Contract.mantissa(76).modulus_count(2**40), lambda: Contract.normwise(1 + 1e-12).modulus_count(1),
    ],
)  # fmt: skip
def test_value_errors(make):
    with pytest.raises(ValueError):  # noqa: PT011 (messages differ)
        make()


@pytest.mark.parametrize(
    ("make", "given", "allowed"),
    [
        *((lambda n=n: Contract.moduli(n), f"n={n!r}", "an integer from 2 to 20") for n in ("x", None, math.inf, math.nan, True, np.True_, 2.5, [2], 1, 21)),
        *((lambda n=n: Contract.mantissa(n), f"bits={n!r}", "an integer from 1 to 76") for n in ("x", None, math.inf, math.nan, True, 5.5, 0, 77)),
        *((lambda c=c: Contract.normwise(c), f"c={c!r}", "a finite number above 1") for c in (None, [2], (2,), b"2", 2j, np.ones(2), "x", 10**400, math.nan, -math.inf, 1, True, Fraction(2**60 + 1, 2**60))),
        *((lambda n=n: jo.plan(n, 1, 1), f"m={n!r}", "an integer of at least 0") for n in (2.5, "a", True, None, -1)),
        (lambda: jo.plan(1, 1, 1, batch=1.5), "batch=1.5", "an integer of at least 0"),
        *((lambda n=n: jo.plan(1, 1, 1, workspace_bytes=n), f"workspace_bytes={n!r}", "an integer of at least 1") for n in (math.inf, "x", 0)),
        *((lambda n=n: jo.default_workspace_bytes(n).__enter__(), f"default_workspace_bytes={n!r}", "an integer of at least 1") for n in (math.inf, None, "x", True, 0)),
        *((lambda t=t: Contract.parse(t), repr(t), "n is missing, an integer from 2 to 20") for t in ("moduli", "moduli(reproducible=False)")),
        *((lambda t=t: Contract.parse(t), repr(t), "is needed") for t in ("normwise(", "normwise(c=2)", "native(", "moduli(2.5)", "moduli(x)", "mantissa(nan)", "normwise(inf)", "normwise(1e999)", 3, None)),
    ],
)  # fmt: skip
def test_errors_name_what_was_given_and_what_is_allowed(make, given, allowed):
    """TypeError for what is no number, ValueError for a number out of range."""
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert given in str(caught.value) and allowed in str(caught.value)


@pytest.mark.parametrize("n", ["x", None, math.inf, True, 2.5])
def test_wrong_types_are_type_errors(n):
    for make in (Contract.moduli, Contract.mantissa, lambda n: jo.plan(n, 1, 1)):
        with pytest.raises(TypeError):
            make(n)
    for c in (None, [2], b"2"):
        with pytest.raises(TypeError):
            Contract.normwise(c)


def test_numbers_of_numpy_are_numbers():
    assert Contract.moduli(np.int64(7)) == Contract.moduli(7) and type(Contract.moduli(np.int64(7)).parameter) is int
    assert type(Contract.normwise(np.float32(2)).parameter) is type(Contract.normwise(2).parameter) is float
    assert jo.plan(np.int32(2), 2, 2) == jo.plan(2, 2, 2)
    assert str(Contract.normwise(np.str_("k"))) == "normwise(k)"


@pytest.mark.parametrize(
    "contract", [*CONTRACTS, *(Contract(c.kind, c.parameter, False) for c in CONTRACTS[:-1])], ids=str
)
def test_text_and_identity(contract):
    assert Contract.parse(str(contract)) == contract
    assert hash(Contract.parse(str(contract))) == hash(contract)
    assert eval(repr(contract)) == contract
    assert len({str(c) for c in CONTRACTS}) == len(CONTRACTS)
    assert (str(Contract.normwise(2)), repr(Contract.normwise(2))) == ("normwise(2)", "Contract.normwise(2)")
    assert Contract.normwise(2) == Contract.normwise(2.0)


@pytest.mark.parametrize("kind", ["normwise", "mantissa", "componentwise", "exact"])
def test_text_follows_the_defaults(kind):
    make = getattr(Contract, kind)
    assert Contract.parse(kind) == Contract.parse(f"{kind}()") == make()
    assert Contract.parse(f"{kind}(reproducible=False)") == make(reproducible=False)


@pytest.mark.parametrize("c", [1 + 2.0**-30, 1.1, 1 / 3 + 1, 123456789.0, 1e300])
def test_text_keeps_every_bit(c):
    assert Contract.parse(str(Contract.normwise(c))) == Contract.normwise(c)


# Plans.


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_plan(contract):
    plan = jo.plan(30, 40, 50, batch=3, contract=contract)
    n = contract.modulus_count(50)
    assert plan.contract == contract
    assert plan.moduli == n
    assert plan.int8_gemms == 3 * n
    assert str(plan.moduli) in str(plan) or contract == Contract.native()
    if n:
        assert plan.log2_product == pytest.approx(math.log2(math.prod(oracle.MODULI[:n])), abs=1e-9)
        assert plan.guarantee


def test_plan_of_a_dtype_that_is_not_emulated():
    assert jo.plan(3, 3, 3, dtype=jnp.float32).moduli == 0


@pytest.mark.parametrize("contract", [Contract.moduli(15), Contract.componentwise(), Contract.exact()], ids=str)
def test_plan_states_the_memory_that_is_used(contract):
    """Residues and reduced products, sums of magnitudes, and nothing of that size beside them."""
    m, n, k = 200, 300, 400
    shapes = [jax.ShapeDtypeStruct(s, jnp.float64) for s in ((m, k), (k, n))]
    compiled = jax.jit(partial(jo.dot, contract=contract)).lower(*shapes).compile()
    planned = jo.plan(m, n, k, contract=contract).workspace_bytes
    small = 64 * (m + n) + 4096 + (2 * m * n if contract.certified else 0)  # with the map of rungs
    # Sums of magnitudes are gone before the third rung's residues come: XLA may give both the same buffer.
    shared = 4 * contract.magnitude_sums * m * 304
    assert (planned - shared) * 0.9 <= compiled.memory_analysis().temp_size_in_bytes + small
    assert compiled.memory_analysis().temp_size_in_bytes <= planned + small


def test_plan_prints_its_memory():
    small, large = (jo.plan(n, n, n, contract=Contract.moduli(15)) for n in (64, 1024))
    assert f"{small.workspace_bytes / 2**10:.1f} KiB of residues" in str(small)
    assert f"{large.workspace_bytes / 2**20:.1f} MiB of residues" in str(large)


def test_plan_errors():
    for sizes in ((-1, 2, 3), (1, -2, 3), (1, 2, -3)):
        with pytest.raises(ValueError, match=r"-[123]: an integer of at least 0"):
            jo.plan(*sizes)
    with pytest.raises(ValueError, match="workspace"):
        jo.plan(100, 100, 100, workspace_bytes=10)
    with pytest.raises(ValueError, match="moduli"):
        jo.plan(2, 2, 2**20, contract=Contract.moduli(2))


# Defaults.

A, B = generators.operands(np.random.default_rng(9), 4, 20, 3)


def test_default_is_componentwise():
    assert jo.plan(4, 3, 20).contract == Contract.componentwise("sqrt_k")
    assert_same_bits(jo.dot(A, B), ladder_oracle.default_product(A, B))


def test_default_contract_is_part_of_the_jit_key():
    f = jax.jit(lambda a, b: jo.dot(a, b))
    usual = ladder_oracle.default_product(A, B)
    assert_same_bits(f(A, B), usual)
    with jo.default_contract(Contract.moduli(4)):
        assert_same_bits(f(A, B), oracle.product(A, B, 4))
        with jo.default_contract(Contract.moduli(6)):
            assert_same_bits(f(A, B), oracle.product(A, B, 6))
            assert_same_bits(jo.dot(A, B, contract=Contract.moduli(3)), oracle.product(A, B, 3))
        assert_same_bits(f(A, B), oracle.product(A, B, 4))
        assert jo.plan(4, 3, 20).contract == Contract.moduli(4)
    assert_same_bits(f(A, B), usual)


def test_default_contract_is_restored_and_local():
    with pytest.raises(RuntimeError, match="body"), jo.default_contract(Contract.moduli(4)):
        raise RuntimeError("body")
    assert jo.plan(4, 3, 20).contract == Contract.componentwise()
    seen = []
    with jo.default_contract(Contract.moduli(4)):
        thread = threading.Thread(target=lambda: seen.append(jo.plan(4, 3, 20).contract))
        thread.start()
        thread.join()
    assert seen == [Contract.componentwise()]
    with pytest.raises(TypeError, match="Contract"), jo.default_contract("normwise(2)"):
        pass


def test_the_derivative_keeps_the_contract_of_the_product():
    """The contract is read when the product is called, not when it is transposed."""
    with jo.default_contract(Contract.moduli(4)):
        _, vjp = jax.vjp(jo.dot, A, B)
    ct = np.ones((4, 3))
    for found, expected in zip(vjp(ct), (oracle.product(ct, B.T, 4), oracle.product(A.T, ct, 4)), strict=True):
        assert_same_bits(found, expected)


def test_environment():
    """Read once a process; a context goes before it."""
    program = """
import jax_ozaki as jo
print(jo.plan(4, 3, 20).contract)
with jo.default_contract(jo.Contract.moduli(4)):
    print(jo.plan(4, 3, 20).contract)
"""

    def run(value):
        environment = os.environ | {"JAX_OZAKI_CONTRACT": value}
        return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)

    assert run("normwise(sqrt_k)").stdout.split() == ["normwise(sqrt_k)", "moduli(4)"]
    failed = run("moduli(99)")
    assert failed.returncode
    assert "JAX_OZAKI_CONTRACT" in failed.stderr
    assert "moduli(99)" in failed.stderr
