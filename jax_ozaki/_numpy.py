"""The public products: jnp's and lax's functions with their float64 and complex128 products emulated.

Each traces jnp's own function and replaces the products in it, so promotion, weak types, broadcasting,
``precision``, ``preferred_element_type``, ``out_sharding`` and errors are jnp's. Products of dtypes other
than these are XLA's, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import unwrap
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from . import _arguments, _plan
from ._compat import INLINE
from ._contract import Contract, resolve
from ._evaluate import Rewriter
from ._prepare import Prepared
from ._report import Report, report
from ._rewrite import emulates


def _product(
    fn: Callable[..., Any],
    *operands: Any,
    contract: Contract | None,
    return_report: bool,
    single: bool = True,
    **static: Any,
) -> Any:
    """``fn(*operands, **static)`` emulated, with one report if ``single``, else a tuple of them."""
    # An operand given twice stays one: a product with itself may be symmetric.
    given: dict[int, Any] = {}
    for position, x in enumerate(operands):
        if id(x) not in given:
            given[id(x)] = _operand(fn.__name__.strip("_"), position, x)
    places, distinct = tuple(map(list(given).index, map(id, operands))), tuple(given.values())
    contract = _operand_contract(distinct, contract)
    if contract.kind != "native":
        _check_precision(static.get("precision"), distinct, static.get("preferred_element_type"))
    values = {name: _hashable(value) for name, value in static.items()}
    result, reports = _run(
        distinct,
        places=places,
        fn=fn,
        static=tuple((name, _types(value), value) for name, value in values.items()),
        contract=contract,
        workspace_bytes=_plan.resolve_workspace(),
        return_report=return_report,
    )
    if not return_report:
        return result
    return result, reports[0] if single else reports


@partial(
    jax.jit, static_argnames=("places", "fn", "static", "contract", "workspace_bytes", "return_report"), inline=INLINE
)
def _run(
    distinct: tuple[Any, ...],
    *,
    places: tuple[int, ...],
    fn: Callable[..., Any],
    static: tuple[tuple[str, Any, Any], ...],
    contract: Contract,
    workspace_bytes: int,
    return_report: bool,
) -> tuple[Any, tuple[Report, ...]]:
    operands = [distinct[i] for i in places]
    arrays = [x.array if isinstance(x, Prepared) else x for x in operands]
    rewriter = Rewriter(contract, workspace_bytes, return_report)
    # Unwrapped, fn is not jitted once more inside.
    closed = jax.make_jaxpr(partial(unwrap(fn), **{name: value for name, _, value in static}))(*arrays)
    (result,) = rewriter.evaluate(closed, operands)
    if return_report and not rewriter.reports and len(arrays) == 2:
        # jnp multiplies by a scalar without a product.
        lhs, rhs = arrays
        rewriter.reports.append(report(lhs, rhs, (((), ()), ((), ())), Contract.native()))
    return result, tuple(rewriter.reports)


def _operand_contract(operands: Sequence[Any], contract: Contract | None) -> Contract:
    prepared = [x for x in operands if isinstance(x, Prepared)]
    if not prepared:
        return resolve(contract)
    of_operand = prepared[0].contract
    if contract is not None and contract != of_operand:
        raise ValueError(f"contract={contract}, but the operand was prepared for {of_operand}.")
    return of_operand


def _operand(name: str, position: int, x: Any) -> Any:
    """An operand as jnp takes it: a scalar stays weakly typed, a list is an error."""
    if isinstance(x, Array | Prepared):
        return x
    if not isinstance(x, get_args(ArrayLike)) and not hasattr(x, "__jax_array__"):
        raise TypeError(f"{name} requires ndarray or scalar arguments, got {type(x)} at position {position}.")
    return _arguments.array(f"{name}'s argument at position {position}", x)


def _check_precision(precision: Any, operands: Sequence[Any], preferred: Any) -> None:
    """Precision levels concern narrower dtypes, as in lax; an explicit algorithm contradicts the contract."""
    algorithm = (
        lax.DotAlgorithmPreset.__members__.get(precision, precision) if isinstance(precision, str) else precision
    )
    if not isinstance(algorithm, lax.DotAlgorithm | lax.DotAlgorithmPreset) or algorithm in (
        lax.DotAlgorithmPreset.DEFAULT,
        lax.DotAlgorithmPreset.F64_F64_F64,
    ):
        return
    with jax.enable_x64(True):  # wide arrays are emulated whatever the flag says
        dtype = jnp.result_type(*(x.array if isinstance(x, Prepared) else x for x in operands))
    if emulates(dtype, dtype, dtype if preferred is None else preferred):
        raise ValueError(
            f"precision={precision} asks for an algorithm, but a {jnp.dtype(dtype).name} product follows its contract: "
            "leave precision out, or use Contract.native()."
        )


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _types(value: Any) -> Any:
    """Tells 3 from 3.0 and True from 1 in the jit key."""
    return tuple(map(_types, value)) if isinstance(value, tuple) else type(value)


def dot(
    a: ArrayLike | Prepared,
    b: ArrayLike | Prepared,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    contract: Contract | None = None,
    return_report: bool = False,
) -> Any:
    """:func:`jax.numpy.dot`: the last axis of ``a`` with the last but one of ``b``.

    Arguments:
        a: shape (..., k), an array or an operand from :func:`jax_ozaki.prepare`.
        b: shape (k,) or (..., k, n), likewise.
        precision: as in jax.numpy; levels have no effect on float64 and complex128.
        preferred_element_type: dtype of the result.
        out_sharding: sharding of the result.
        contract: the precision promised; None takes the default contract.
        return_report: also return a :class:`jax_ozaki.Report`.

    Raises ValueError for a contract that cannot be kept for this k, and what jax.numpy.dot raises.
    """
    options = {"precision": precision, "preferred_element_type": preferred_element_type, "out_sharding": out_sharding}
    return _product(jnp.dot, a, b, contract=contract, return_report=return_report, **options)


def matmul(
    a: ArrayLike | Prepared,
    b: ArrayLike | Prepared,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    contract: Contract | None = None,
    return_report: bool = False,
) -> Any:
    """:func:`jax.numpy.matmul`: (..., m, k) x (..., k, n), stacks broadcast. Arguments as in :func:`dot`."""
    options = {"precision": precision, "preferred_element_type": preferred_element_type, "out_sharding": out_sharding}
    return _product(jnp.matmul, a, b, contract=contract, return_report=return_report, **options)


def vdot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    contract: Contract | None = None,
    return_report: bool = False,
) -> Any:
    """:func:`jax.numpy.vdot`: the scalar product of the raveled operands. Arguments as in :func:`dot`."""
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    return _product(jnp.vdot, a, b, contract=contract, return_report=return_report, **options)


def inner(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    contract: Contract | None = None,
    return_report: bool = False,
) -> Any:
    """:func:`jax.numpy.inner`: the last axes of (..., k) and (..., k). Arguments as in :func:`dot`."""
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    return _product(jnp.inner, a, b, contract=contract, return_report=return_report, **options)


def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: int | Sequence[int] | Sequence[Sequence[int]] = 2,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    contract: Contract | None = None,
    return_report: bool = False,
) -> Any:
    """:func:`jax.numpy.tensordot`: contraction over ``axes``. Other arguments as in :func:`dot`."""
    options = {"precision": precision, "preferred_element_type": preferred_element_type, "out_sharding": out_sharding}
    return _product(jnp.tensordot, a, b, contract=contract, return_report=return_report, axes=axes, **options)


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    contract: Contract | None = None,
    return_report: bool = False,
) -> Any:
    """:func:`jax.numpy.einsum`, each product of its contraction path emulated.

    ``return_report`` gives a tuple of reports, one for each product in the order of the path. Other
    arguments as in :func:`dot`.
    """
    if out is not None:
        raise NotImplementedError("out: einsum writes to no array, as in jax.numpy.")
    if isinstance(subscripts, str):
        arrays: tuple[Any, ...] = operands
        spelling: dict[str, Any] = {"subscripts": subscripts}
    else:  # einsum(x, [0, 1], y, [1, 2], [0, 2]), the last list being optional
        arguments = (subscripts, *operands)
        arrays = arguments[: len(arguments) // 2 * 2 : 2]
        spelling = {"axes": arguments[1::2] + arguments[len(arrays) * 2 :]}
    options = {"precision": precision, "preferred_element_type": preferred_element_type, "out_sharding": out_sharding}
    return _product(
        _einsum,
        *arrays,
        contract=contract,
        return_report=return_report,
        single=False,
        optimize=optimize,
        **spelling,
        **options,
    )


def _einsum(*arrays: Any, subscripts: str | None = None, axes: Sequence[Any] = (), **options: Any) -> Any:
    if subscripts is not None:
        return jnp.einsum(subscripts, *arrays, **options)
    interleaved = [x for pair in zip(arrays, axes, strict=False) for x in pair]
    return jnp.einsum(*interleaved, *axes[len(arrays) :], **options)


def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = -1,
    precision: Any = None,
    preferred_element_type: Any = None,
    contract: Contract | None = None,
    return_report: bool = False,
) -> Any:
    """:func:`jax.numpy.vecdot`: scalar products along ``axis``, stacks broadcast. Arguments as in :func:`dot`."""
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    return _product(jnp.vecdot, x1, x2, contract=contract, return_report=return_report, axis=axis, **options)


def matvec(x1: ArrayLike, x2: ArrayLike, /, *, contract: Contract | None = None, return_report: bool = False) -> Any:
    """:func:`jax.numpy.matvec`: (..., m, k) x (..., k). Arguments as in :func:`dot`."""
    return _product(jnp.matvec, x1, x2, contract=contract, return_report=return_report)


def vecmat(x1: ArrayLike, x2: ArrayLike, /, *, contract: Contract | None = None, return_report: bool = False) -> Any:
    """:func:`jax.numpy.vecmat`: (..., k) x (..., k, n). Arguments as in :func:`dot`."""
    return _product(jnp.vecmat, x1, x2, contract=contract, return_report=return_report)


def dot_general(
    lhs: ArrayLike | Prepared,
    rhs: ArrayLike | Prepared,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
    contract: Contract | None = None,
    return_report: bool = False,
) -> Any:
    """:func:`jax.lax.dot_general`: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``.

    Other arguments as in :func:`dot`.
    """
    options = {"precision": precision, "preferred_element_type": preferred_element_type, "out_sharding": out_sharding}
    return _product(
        lax.dot_general,
        lhs,
        rhs,
        contract=contract,
        return_report=return_report,
        dimension_numbers=dimension_numbers,
        **options,
    )


def multi_dot(
    arrays: Sequence[ArrayLike],
    *,
    precision: Any = None,
    contract: Contract | None = None,
    return_report: bool = False,
) -> Any:
    """:func:`jax.numpy.linalg.multi_dot`: a chain of products in its cheapest order.

    ``return_report`` gives a tuple of reports, one for each product.
    """
    return _product(
        _multi_dot, *arrays, contract=contract, return_report=return_report, single=False, precision=precision
    )


def _multi_dot(*arrays: Any, **options: Any) -> Any:
    return jnp.linalg.multi_dot(arrays, **options)


def matrix_power(a: ArrayLike, n: int, *, contract: Contract | None = None, return_report: bool = False) -> Any:
    """:func:`jax.numpy.linalg.matrix_power` by repeated squaring.

    A negative ``n`` solves for the inverse first, by XLA's decomposition, whose derivatives are emulated too.

    ``return_report`` gives a tuple of reports, one for each product.
    """
    return _product(jnp.linalg.matrix_power, a, contract=contract, return_report=return_report, single=False, n=n)
