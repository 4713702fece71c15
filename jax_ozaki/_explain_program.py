"""What becomes of each product of a program: the ``explain`` of ``emulate`` and ``enable``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from . import _dimensions, _switch
from ._compat import (
    TracebackScope,
    custom_linear_solve_p,
    dot_general_p,
    module_products,
    scan_p,
    site_of,
    trace,
    user_frame,
    while_p,
    zeros_of,
)
from ._jaxpr import inline, inner_jaxprs, opened
from ._prepared_product import ozaki_prepared_dot_general_p
from ._primitive import ozaki_dot_general_p
from ._settings import Settings
from ._substitute import OPAQUE, Substitution, staged

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
    """File, line and function in the program; the name of the function given where that is none of the program's."""
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
        total = f"{self.emulated} product{_plural(self.emulated)} emulated, "
        total += f"{self.native} float64 or complex128 product{_plural(self.native)} native"
        return "\n".join([*map(str, self.products), total])


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


def explain_program(
    settings: Settings, fn: Callable[..., Any], *args: Any, reaches_lowering: bool = False, **kwargs: Any
) -> Explanation:
    """What ``settings`` make of ``fn(*args, **kwargs)``; whether they reach what is created at lowering."""
    closed, arrays, _ = staged(fn, *args, **kwargs)
    site = _name(fn)
    found = list(products(closed, settings, site=site))
    remaining = [] if reaches_lowering else _created_at_lowering(_WithoutProducts(settings).rewrite(closed), arrays)
    left = [product[:4] for product in remaining]
    for *product, where in _created_at_lowering(_Unwatched(settings).rewrite(closed), arrays):
        lhs, rhs, result, numbers = product
        because = settings.native_because(lhs, rhs, result, {"dimension_numbers": numbers})
        if tuple(product) in left:
            left.remove(tuple(product))
            because = because or "its primitive creates it at lowering, where jax_ozaki.enable reaches it"
        found.append(_product(lhs, rhs, result, numbers, 1, False, where or site, because))
    return Explanation(tuple(found))


def _name(fn: Callable[..., Any]) -> str:
    """The name of a function; of the innermost where it is wrapped, or some of its arguments are given."""
    while inner := fn.func if isinstance(fn, partial) else getattr(fn, "__wrapped__", None):
        fn = inner
    return getattr(fn, "__name__", type(fn).__name__)


def _created_at_lowering(jaxpr: Any, arrays: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The products in the lowering of a jaxpr that shows none."""

    def program(*arrays: Any) -> list[Any]:
        return jaxpr_as_fun(jaxpr)(*arrays)

    with _switch.context(None), TracebackScope():  # the line that asks for an explanation is none of the program's
        return module_products(jax.jit(program).lower(*arrays).compiler_ir())


class _WithoutProducts(Substitution):
    """Leaves only the products that remain when primitives create theirs at lowering."""

    def _equation(self, equation: Any, scope: Any) -> Any:
        if equation.primitive not in MULTIPLICATIONS and equation.primitive.name not in OPAQUE:
            return super()._equation(equation, scope)
        with site_of(equation):
            closed = trace(lambda: [zeros_of(x.aval) for x in equation.outvars], [])
        equations, results = inline(closed, [], equation)
        scope.atoms.update(zip(equation.outvars, results, strict=True))
        return equations


class _Unwatched(_WithoutProducts):
    """Leaves all products that primitives create at lowering."""

    def is_watched(self, equation: Any) -> bool:
        return False


def products(
    jaxpr: Any,
    settings: Settings,
    count: int = 1,
    in_while: bool = False,
    opaque: str | None = None,
    site: str = "",
) -> Iterator[Product]:
    """The products of a jaxpr, those in its inner jaxprs included.

    ``opaque`` names what keeps them native; ``site`` is where the program asked for the whole.
    """
    for equation in opened(jaxpr).eqns:
        primitive, params = equation.primitive, equation.params
        where = user_frame(equation) or site
        if primitive in MULTIPLICATIONS:
            lhs, rhs, result = (x.aval for x in (*equation.invars[:2], *equation.outvars))
            because = settings.native_because(lhs, rhs, result, params) if primitive is dot_general_p else None
            because = f"in a {opaque}" if opaque else because
            yield _product(lhs, rhs, result, params["dimension_numbers"], count, in_while, where, because)
            continue
        times = params["length"] if primitive is scan_p else 1
        inner = params["jaxprs"].solve if primitive is custom_linear_solve_p else params
        within = opaque or (primitive.name if primitive.name in OPAQUE else None)
        for part in inner_jaxprs(inner):
            yield from products(part, settings, count * times, in_while or primitive is while_p, within, where)


def _product(lhs: Any, rhs: Any, result: Any, dimension_numbers: Any, *how: Any) -> Product:
    groups = _dimensions.groups(_dimensions.canonical(dimension_numbers), lhs.ndim, rhs.ndim)
    return Product(*_dimensions.extents(lhs.shape, rhs.shape, *groups), result.dtype.name, *how)
