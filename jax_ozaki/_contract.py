"""Precision contracts: what a product promises, and how many moduli that takes."""

from __future__ import annotations

import math
import operator
import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Literal, cast, get_args

import jax

from . import _chains, _field, _moduli, _rungs
from ._field import Field
from ._moduli import Fewer

Kind = Literal["moduli", "mantissa", "normwise", "componentwise", "exact", "native"]

_MAX_MANTISSA = 76


@dataclass(frozen=True, repr=False)
class Contract:
    """The precision a product guarantees. Build one with the named constructors.

    With u = 2^-53, A an (m, k) and B a (k, n) matrix, a_i a row of A and b_j a column of B:

    ====================  ========================================================================
    ``moduli(n)``         the exact product of operands rounded to what n moduli hold, rounded once
    ``mantissa(bits)``    each element is kept to 2^-bits of the largest magnitude in its row of A or
                          column of B; then the exact product, rounded once
    ``normwise(c)``       \\|C - AB\\|_ij <= c u norm2(a_i) norm2(b_j)
    ``componentwise(c)``  \\|C - AB\\|_ij <= c u (\\|A\\| \\|B\\|)_ij, certified output by output
    ``exact()``           every output is the correctly rounded true value
    ``native()``          XLA's own dot_general; no emulation
    ====================  ========================================================================

    In a complex product norm2 is that of complex vectors, an element has two parts that are each kept to
    2^-bits of the largest part, the real and the imaginary part are each rounded once, and the bound holds
    for the absolute value of the complex error, hence for either part. ``componentwise`` and ``exact`` hold for
    either part, a real product of length 2k.

    Bounds hold up to one rounding in the subnormal range, and below overflow: a computed value beyond the largest
    float64 becomes the signed infinity, where the true one is within the bound of that limit too. Contracts are
    hashable, compare by value and are part of the jit key.

    A product whose k is sharded over a mesh has the bits of the unsharded one. With ``reproducible=False`` it is
    instead the float64 sum of the products of the shards, each under the contract for its own part of k: half the
    bytes between devices or less, other bits on every mesh, and the roundings of that sum beyond the guarantee.
    """

    kind: Kind
    parameter: int | float | str | None = None
    reproducible: bool = True

    def __post_init__(self) -> None:
        match self.kind:
            case "moduli":
                parameter: Any = integer("n", self.parameter, _moduli.MIN_MODULI, _moduli.MAX_MODULI)
            case "mantissa":
                parameter = integer("bits", self.parameter, 1, _MAX_MANTISSA)
            case "normwise" | "componentwise":
                parameter = _error_factor(self.parameter)
            case "exact" | "native" if self.parameter is None:
                parameter = None
            case _:
                raise ValueError(
                    f"kind={self.kind!r}, parameter={self.parameter!r}: one of moduli(n), mantissa(bits), normwise(c), "
                    "componentwise(c), exact() and native() is needed."
                )
        if not isinstance(self.reproducible, bool):
            raise TypeError(f"reproducible={self.reproducible!r}: True or False is needed.")
        if self.kind == "native" and not self.reproducible:
            raise ValueError("reproducible=False: a native product states no bits that it could give up.")
        object.__setattr__(self, "parameter", parameter)

    @staticmethod
    def moduli(n: int, *, reproducible: bool = True) -> Contract:
        """Use exactly ``n`` moduli, 2 <= n <= 20: the raw Ozaki scheme II."""
        return Contract("moduli", n, reproducible)

    @staticmethod
    def mantissa(bits: int = 53, *, reproducible: bool = True) -> Contract:
        """Keep each element to ``2^-bits`` of the largest magnitude in its row or column."""
        return Contract("mantissa", bits, reproducible)

    @staticmethod
    def normwise(c: float | str = 2.0, *, reproducible: bool = True) -> Contract:
        """Bound every error by ``c u norm2(row) norm2(column)``.

        ``c`` is a number above 1 (one u of it is the final rounding), ``"sqrt_k"`` for 1 + sqrt(k)
        or ``"k"`` for 1 + k.
        """
        return Contract("normwise", c, reproducible)

    @staticmethod
    def componentwise(c: float | str = "sqrt_k", *, reproducible: bool = True) -> Contract:
        """Bound every error by ``c u`` times that output's sum of absolute products, ``|A||B|``.

        ``c`` as for :meth:`normwise`; c - 1 must be at least k 2^-38. What is certified for an output depends
        on its own row and column only.
        """
        return Contract("componentwise", c, reproducible)

    @staticmethod
    def exact(*, reproducible: bool = True) -> Contract:
        """Round every true value correctly: slow where the elements of a row differ by many orders."""
        return Contract("exact", reproducible=reproducible)

    @staticmethod
    def native() -> Contract:
        """Leave the product to XLA."""
        return Contract("native")

    @staticmethod
    def parse(text: str) -> Contract:
        """The contract that ``str`` wrote: ``"moduli(14)"``, ``"componentwise(sqrt_k)"``, ``"native"``.

        What its constructor has a default for may be left out: ``"normwise"`` is ``Contract.normwise()``.
        """
        if not isinstance(text, str):
            raise TypeError(f"text={text!r}: a string is needed, as in 'normwise(2)'.")
        name, parenthesis, rest = text.strip().partition("(")
        argument, _, option = (part.strip() for part in rest.removesuffix(")").partition(","))
        argument, bare = argument.strip("'\""), name in ("exact", "native")
        if "=" in argument:
            argument, option = "", argument
        unknown = name not in get_args(Kind) or option not in ("", _NOT_REPRODUCIBLE)
        if unknown or (parenthesis and not rest.endswith(")")) or (bare and argument):
            raise ValueError(
                f"{text!r} is not a contract: moduli(n), mantissa(bits), normwise(c), componentwise(c), exact or native "
                f"is needed, as in 'normwise(2)' or 'normwise(2, {_NOT_REPRODUCIBLE})'."
            )
        if name == "moduli" and not argument:
            allowed = f"an integer from {_moduli.MIN_MODULI} to {_moduli.MAX_MODULI}"
            raise ValueError(f"{text!r} is not a contract: n is missing, {allowed}, as in 'moduli(14)'.")
        try:
            parameter = _number(argument) if argument else getattr(Contract, name)().parameter
            return Contract(cast(Kind, name), parameter, reproducible=not option)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{text!r} is not a contract: {error}") from None

    def __str__(self) -> str:
        """The contract in short, as ``parse`` reads it: ``"normwise(2)"``, ``"exact"``."""
        arguments = ", ".join(x.strip("'") for x in self._arguments)
        return f"{self.kind}({arguments})" if arguments else self.kind

    def __repr__(self) -> str:
        """The call of its constructor."""
        return f"Contract.{self.kind}({', '.join(self._arguments)})"

    @property
    def _arguments(self) -> list[str]:
        of_parameter = [] if self.parameter is None else [repr(self.parameter).removesuffix(".0")]
        return of_parameter if self.reproducible else [*of_parameter, _NOT_REPRODUCIBLE]

    @property
    def guarantee(self) -> str:
        """The promise in one sentence."""
        return self._promise + ("" if self.reproducible else "; of each shard of k, their products summed in float64")

    @property
    def _promise(self) -> str:
        match self.kind:
            case "moduli":
                return f"the exact product of operands rounded to what {self.parameter} moduli hold, rounded once"
            case "mantissa":
                return f"elements kept to 2^-{self.parameter} of their row's or column's maximum; exact product, rounded once"
            case "normwise" | "componentwise":
                c = {"sqrt_k": "(1 + sqrt(k))", "k": "(1 + k)"}.get(str(self.parameter), str(self.parameter))
                scale = "norm2(row) norm2(column)" if self.kind == "normwise" else "|A||B|, certified for every output"
                return f"|C - AB| <= {c} 2^-53 {scale}"
            case "exact":
                return "every output is the correctly rounded true value"
            case _:
                return "XLA's own product, no bound stated"

    def error_factor(self, k: int) -> float | None:
        """c of ``normwise`` and ``componentwise`` for a contraction of length ``k``, 1 for ``exact``; None where the
        contract has no bound."""
        if self.kind == "exact":
            return 1.0
        if self.kind not in ("normwise", "componentwise"):
            return None
        match self.parameter:
            case "sqrt_k":
                return 1 + math.sqrt(k)
            case "k":
                return 1.0 + k
            case _:
                return float(self.parameter)  # type: ignore[arg-type]

    @property
    def certified(self) -> bool:
        """Whether outputs are decided one by one, on the device, up a ladder of rungs."""
        return self.kind in ("componentwise", "exact")

    def wide_modulus_count(self, k: int) -> int:
        """The number of moduli of a ``componentwise`` product's third rung."""
        return min(self.modulus_count(k) + _WIDER, _moduli.MAX_MODULI)

    def fewer(self, k: int) -> Fewer | None:
        """When rows of a contraction of length ``k`` take the scale of fewer moduli than ``modulus_count`` has."""
        return self._fewer(k) if self.kind == "componentwise" and k >= _LONG else None

    @cache  # noqa: B019 -- contracts are few and small
    def _fewer(self, k: int) -> Fewer | None:
        c = self.error_factor(k)
        assert c is not None
        for n in range(_moduli.MIN_MODULI, self.modulus_count(k)):
            headroom = _headroom(n, k, _field.REAL)
            if headroom is None:
                continue
            # A rounded element adds at most half of the largest integer opposite to an error that may be
            # (c - 1) u |A||B|, and ordinary data certify when rows and columns have `rounded` each. Of float32 values
            # so many lie that far below the largest that `expected` are rounded; seldom may a row have too many.
            log_k, log_bound = math.log2(k), math.log2(headroom)
            log_rounded = math.log2(c - 1) + log_k / 2 + log_bound - 53 - _SPREAD_BITS
            log_expected = 1.5 * log_k + _FLOAT32_BITS - log_bound
            if log_rounded >= math.log2(3) and log_expected <= 2 * log_rounded - 7:
                return Fewer(n, min(int(2**log_rounded), _MOST_ROUNDED))
        return None

    def sum_group(self, k: int) -> int:
        """Chains of a group where the last rung adds up in float64, as ``_chains`` has it; 0 where it adds integers."""
        c = self.error_factor(k)
        if self.kind != "componentwise" or c is None or k < 4 or _chains.error_factor(k) > c:
            return 0
        return _chains.group(k)

    def sum_error_factor(self, k: int) -> float:
        """A bound on |C - AB| in u |A||B| for the outputs of the last rung."""
        integers = 1 + k * 2.0**-39 * (1 + 2.0**-20)  # a sum within k 2^-92 |A||B|, and its rounding
        return max(integers, _chains.error_factor(k)) if self.sum_group(k) else integers

    def workspace_planes(self, k: int, dtype: Any = "float64") -> int:
        """The planes of residues held at a time; in a ``componentwise`` product those of the third rung, or earlier
        those of the first and the planes of magnitudes."""
        wider = _WIDER if self.kind == "componentwise" else 0
        return _field.of(dtype).parts * self.modulus_count(k, dtype) + wider

    @property
    def magnitude_sums(self) -> int:
        """The sums of magnitudes that are held beside them for every output."""
        return _rungs.FINE_PLANES if self.kind == "componentwise" else 0

    def modulus_count(self, k: int, dtype: Any = "float64") -> int:
        """The number of moduli for a contraction of length ``k`` of float64 or complex128, in a certified product
        those of its first rung; 0 for ``native``.

        Raises ValueError where no modulus set keeps the promise.
        """
        return self._modulus_count(k, _field.of(dtype))

    @cache  # noqa: B019 -- contracts are few and small
    def _modulus_count(self, k: int, field: Field) -> int:
        most = len(field.moduli)
        if self.kind == "native":
            return 0
        if self.kind == "exact":
            return most
        if self.kind == "moduli":
            n = int(self.parameter)  # type: ignore[arg-type]
            if n > most:
                raise ValueError(f"{self} has more moduli than a {field.dtype} product can use: {most} at most.")
            if _headroom(n, k, field) is None:
                raise ValueError(f"{self} has too few moduli for a contraction of length k={k}: take more moduli.")
            return n
        if self.kind == "componentwise" and k == 0:
            return self._modulus_count(1, field)
        candidates = range(_moduli.MIN_MODULI, most + 1)
        found = bisect_left(candidates, True, key=lambda n: self._holds(n, k, field))  # more moduli hold more
        if found < len(candidates):
            return candidates[found]
        if self.kind == "componentwise" and self.error_factor(k) - 1 >= k * _SUM_ERROR:  # type: ignore[operator]
            return most
        raise ValueError(f"{self} cannot be kept for a contraction of length k={k} with {most} moduli.")

    def _holds(self, n: int, k: int, field: Field) -> bool:
        headroom = _headroom(n, k, field)
        if headroom is None:
            return False
        c = self.error_factor(k)
        k *= field.parts  # of the real rows and columns whose norms and roundings count
        if self.kind == "mantissa":
            # norm2(a_i) <= sqrt(k) max|a_i|, where the integer norm is at most sqrt(k) (max + 2^-15 max).
            return headroom**2 >= k * _MANTISSA_ROUNDING * (1 << 2 * int(self.parameter))  # type: ignore[arg-type]
        assert c is not None
        if self.kind == "componentwise":
            # The first rung is to certify ordinary data: what it does not certify goes up the ladder.
            return math.log2(headroom) >= 53 + _CERTIFIED_BITS + math.log2(k) / 2 - math.log2(c - 1)
        # The integer norm of a row is at least 2^15, and its norm2 at least (1 - rounding) of that: every term
        # is rounded up by less than 1, and every chunk's sum of squares too. The scale is a power of two,
        # rounded down. So 2^-mu <= 2 norm2(a_i) / (1 - rounding) / headroom.
        rounding = Fraction(_ceil_sqrt(k), 2**15) + Fraction(-(-k // _moduli.CHUNK), 2**30)
        if rounding >= 1:
            return False
        step = _ceil_sqrt(k << 64) * Fraction(1, 2**32) / (1 - rounding) / headroom
        # sqrt(k)/2 (2^-mu ||b|| + 2^-nu ||a||) + k/4 2^-(mu+nu) <= (2 step + step^2) ||a|| ||b||, and the
        # final rounding of a result that exceeds |AB| by that much. Complex too: with d and e the roundings of
        # row and column, ||d|| <= sqrt(2k)/2 2^-mu over their 2k parts, |C - AB| before the last rounding is
        # |d b + a e + d e| <= ||d|| ||b|| + ||a|| ||e|| + ||d|| ||e||, and rounding both parts adds u |C|.
        return (2 * step + step**2) * (1 + Fraction(1, 2**53)) <= (Fraction(c) - 1) / 2**53


_NOT_REPRODUCIBLE = "reproducible=False"
_SUM_ERROR = 2.0**-38
"""What integer sums are certain of: c - 1 for every k, with room for the final rounding."""

_WIDER = 5
"""Moduli that the third rung has more than the first."""

_CERTIFIED_BITS = 3.25
"""What data with exponents of ordinary spread need above the bits of equal magnitudes."""

_SPREAD_BITS, _FLOAT32_BITS = 6, 23.7
"""Of (rand - 1/2) exp(randn / 2): bits of the largest element above the mean, twice and squared, for ``Fewer``; and 24
bits a little above those where the density of elements near zero counts."""

_MOST_ROUNDED = 64

_LONG = 1024
"""Shorter contractions gain a modulus at most."""

_MANTISSA_ROUNDING = (1 + Fraction(1, 2**14)) ** 2


def _ceil_sqrt(x: int) -> int:
    return math.isqrt(x - 1) + 1 if x else 0


def _headroom(n: int, k: int, field: Field) -> Fraction | None:
    """H - sqrt(z)/2, rounded down: the norm a row of z nonzeros may have, z = k times the parts of an element;
    None if H <= sqrt(z)."""
    mantissa, exponent = _moduli.bound(n, field.moduli)
    unit = Fraction(1 << max(exponent, 0), 1 << max(-exponent, 0))
    root = _ceil_sqrt(field.parts * k)
    return (mantissa - 1) * unit - Fraction(root, 2) if mantissa * unit > root else None


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """``value`` as an int from ``low`` to ``high``, or an error that names the argument."""
    allowed = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: {allowed} is needed.")
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}={value!r}: {allowed} is needed.")
    return number


def _error_factor(c: Any) -> float | str:
    message = f'c={c!r}: a finite number above 1, "sqrt_k" or "k" is needed; one u of the bound is the final rounding.'
    if isinstance(c, str):
        if c not in ("sqrt_k", "k"):
            raise ValueError(message)
        return str(c)
    try:
        factor = float(c) if math.isfinite(c) else math.inf
    except OverflowError:
        factor = math.inf
    except TypeError:
        raise TypeError(message) from None
    if not 1 < factor < math.inf:
        raise ValueError(message)
    return factor


def _number(text: str) -> int | float | str:
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text


_ENVIRONMENT = "JAX_OZAKI_CONTRACT"


@cache
def _process_default() -> Contract:
    text = os.environ.get(_ENVIRONMENT)
    if not text:
        return Contract.componentwise("sqrt_k")
    try:
        return Contract.parse(text)
    except ValueError as error:
        raise ValueError(f"{_ENVIRONMENT}: {error}") from None


_context = jax.make_user_context(None)


@contextmanager
def default_contract(contract: Contract) -> Iterator[None]:
    """Use ``contract`` for every product in the block that names none.

    The context is thread-local and part of the jit key: a function jitted outside is traced again.
    """
    with _context(check(contract)):
        yield


def resolve(contract: Contract | None) -> Contract:
    """``contract``, or the default of the context, or that of the process."""
    if contract is not None:
        return check(contract)
    return _context.value or _process_default()


def check(contract: Contract) -> Contract:
    if not isinstance(contract, Contract):
        raise TypeError(
            f"contract={contract!r}: a jax_ozaki.Contract is needed, as in Contract.normwise(2) or "
            "Contract.parse('normwise(2)')."
        )
    return contract
