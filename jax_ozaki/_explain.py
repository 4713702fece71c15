"""What becomes of each product of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from . import _dimensions
from ._compat import custom_linear_solve_p, dot_general_p, scan_p, user_frame, while_p
from ._jaxpr import inner_jaxprs, opened
from ._prepare import ozaki_prepared_dot_general_p
from ._primitive import ozaki_dot_general_p
from ._settings import Settings
from ._substitute import OPAQUE, staged

MULTIPLICATIONS = frozenset({dot_general_p, ozaki_dot_general_p, ozaki_prepared_dot_general_p})


@dataclass(frozen=True)
class Product:
    """One dot_general in a program."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    count: int
    """How often it runs; in a loop whose length is not static, for each iteration of that loop."""
    in_while: bool
    """Whether it stands in a loop whose length is not static."""
    where: str
    """File, line and function in the program."""
    native_because: str | None
    """Why it stays native; None if it is emulated."""

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        count = f"{self.count} x" + (" each iteration" if self.in_while else "")
        fate = "emulated" if self.native_because is None else f"native: {self.native_because}"
        return f"{batch}({self.m}, {self.k}) x ({self.k}, {self.n}) {self.dtype}, {count}, {self.where}: {fate}"


@dataclass(frozen=True)
class Explanation:
    """The products of a program, one a line when printed."""

    products: tuple[Product, ...]

    @property
    def emulated(self) -> int:
        """Places in the program whose product is emulated."""
        return sum(x.native_because is None for x in self.products)

    @property
    def native(self) -> int:
        """Places whose float64 or complex128 product stays native."""
        return sum(x.native_because is not None and x.dtype in ("float64", "complex128") for x in self.products)

    def __str__(self) -> str:
        total = f"{self.emulated} products emulated, {self.native} float64 or complex128 products native"
        return "\n".join([*map(str, self.products), total])


def explain(settings: Settings, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What ``settings`` make of ``fn(*args, **kwargs)``."""
    closed, _, _ = staged(fn, *args, **kwargs)
    return Explanation(tuple(products(closed, settings)))


def products(jaxpr: Any, settings: Settings, count: int = 1, in_while: bool = False) -> Iterator[Product]:
    """The products of a jaxpr, those in its inner jaxprs included."""
    for equation in opened(jaxpr).eqns:
        primitive, params = equation.primitive, equation.params
        if primitive in MULTIPLICATIONS:
            yield _product(equation, settings, count, in_while)
            continue
        times = params["length"] if primitive is scan_p else 1
        inner = params["jaxprs"].solve if primitive is custom_linear_solve_p else params
        for part in inner_jaxprs(inner):
            yield from products(part, settings, count * times, in_while or primitive is while_p)


def _product(equation: Any, settings: Settings, count: int, in_while: bool) -> Product:
    lhs, rhs = (x.aval for x in equation.invars[:2])
    numbers = _dimensions.canonical(equation.params["dimension_numbers"])
    extents = _dimensions.extents(lhs.shape, rhs.shape, *_dimensions.groups(numbers, lhs.ndim, rhs.ndim))
    result = equation.outvars[0].aval
    because = None
    if equation.primitive is dot_general_p:
        because = settings.native_because(lhs, rhs, result, equation.params)
    return Product(*extents, result.dtype.name, count, in_while, user_frame(equation), because)
