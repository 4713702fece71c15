"""What a measured method promises, as a bound that its outputs are checked against."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from jax import Array

from .._contract import Contract
from .reference import UNIT, Magnitudes

Bound = Callable[[Magnitudes], Array]


@dataclass(frozen=True)
class Promise:
    """The precision contract of a method. Methods of equal ``contract`` are compared with one another, no others."""

    contract: str
    guarantee: str
    """One sentence: what is guaranteed, and by whom."""
    bound: Bound
    """The error allowed, output by output."""
    bits: int | None = None
    """Mantissa bits kept of every element, relative to the largest in its row or column; None where not stated."""

    def __post_init__(self) -> None:
        if not self.contract or not self.guarantee or not callable(self.bound):
            raise ValueError(
                f"contract={self.contract!r}, guarantee={self.guarantee!r}, bound={self.bound!r}: a measured method "
                "states a contract, its guarantee and the bound it is checked against."
            )


def componentwise(c: float) -> Bound:
    """c u |A||B|"""
    return lambda of: c * UNIT * of.absolute


def normwise(c: float) -> Bound:
    """c u norm2(row) norm2(column)"""
    return lambda of: c * UNIT * of.norms


def kept_bits(bits: int) -> Bound:
    """The exact product of elements kept to 2^-bits of their row's or column's maximum, rounded once."""
    kept = 2.0**-bits

    def bound(of: Magnitudes) -> Array:
        perturbed = kept * of.maxima + kept**2 * of.k * of.largest
        return (1 + 2 * UNIT) * perturbed + UNIT * (of.product + perturbed)

    return bound


def any_order(k: int) -> Bound:
    """A sum of k rounded products in any order: gamma_k |A||B| (N. J. Higham, Accuracy and Stability, 3.5)."""
    return componentwise(k / (1 - k * UNIT))


def native() -> Promise:
    return Promise(
        "native",
        "XLA's own float64 product, no bound stated; checked against k 2^-53 |A||B|, any sum of k rounded products",
        lambda of: any_order(of.k)(of),
        bits=53,
    )


def of_contract(contract: Contract, k: int) -> Promise:
    """The promise of a jax_ozaki contract for a contraction of length ``k``.

    Raises ValueError where the contract cannot be kept for this k, or is not known here.
    """
    kind: str = contract.kind
    n = contract.modulus_count(k)
    match kind:
        case "native":
            return native()
        case "moduli":
            c = _normwise_factor(n, k)
            guarantee = (
                f"{contract.guarantee}; checked against {c:.3g} 2^-53 norm2(row) norm2(column), which {n} moduli hold"
            )
            return Promise(str(contract), guarantee, normwise(c), bits=_mantissa_bits(n, k))
        case "mantissa":
            bits = int(contract.parameter)  # type: ignore[arg-type]
            return Promise(str(contract), contract.guarantee, kept_bits(bits), bits=bits)
        case "normwise" | "componentwise":
            factor = contract.error_factor(k)
            assert factor is not None
            bound = normwise(factor) if kind == "normwise" else componentwise(factor)
            return Promise(str(contract), contract.guarantee, bound)
        case "exact":
            return Promise(str(contract), contract.guarantee, lambda of: UNIT * of.product)
    raise ValueError(f"{contract}: the benchmark knows no bound to check this contract against.")


def _normwise_factor(n: int, k: int) -> float:
    """The smallest c, to a thousandth, whose normwise(c) ``n`` moduli keep."""

    def holds(exponent: float) -> bool:
        return _suffices(n, Contract.normwise(1 + 2.0**exponent), k)

    low, high = -52.0, 100.0
    if not holds(high):
        raise ValueError(f"moduli({n}) bounds no error for a contraction of length k={k}.")
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return 1 + 2.0**high


def _mantissa_bits(n: int, k: int) -> int | None:
    """The most bits whose mantissa(bits) ``n`` moduli keep."""
    kept = [bits for bits in range(1, 77) if _suffices(n, Contract.mantissa(bits), k)]
    return max(kept, default=None)


def _suffices(n: int, contract: Contract, k: int) -> bool:
    with suppress(ValueError):
        return contract.modulus_count(k) <= n
    return False
