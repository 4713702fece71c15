"""What a product achieved, as arrays on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from . import _dimensions, _quantize, _reference
from ._contract import Contract
from ._dimensions import Groups


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("moduli", "achieved", "native_outputs", "nonfinite_rows", "nonfinite_columns"),
    meta_fields=("contract",),
)
@dataclass(frozen=True)
class Report:
    """What one product used and achieved: a pytree of device scalars, one set a product under ``vmap``.

    No field depends on blocks, batch or device.
    """

    contract: Contract
    moduli: Array
    """int32: moduli multiplied; 0 for a native product."""
    achieved: Array | None
    """float64: a bound on max abs(C - AB)_ij / (u norm2(a_i) norm2(b_j)) for ``normwise``; None where the
    contract has no bound."""
    native_outputs: Array
    """int64: outputs computed by XLA's own product."""
    nonfinite_rows: Array
    """int64: rows of the lhs that hold a NaN or an Inf, over the whole batch."""
    nonfinite_columns: Array
    """int64: columns of the rhs that hold a NaN or an Inf, over the whole batch."""

    def __str__(self) -> str:
        parts = [f"{self.contract}:"]
        parts.append(f"{self.moduli} moduli" if self.contract.kind != "native" else "XLA's product")
        if self.achieved is not None:
            parts.append(f"error at most {self.achieved:.4g} u norm2(row) norm2(column)")
        if self.contract.kind != "native":
            parts.append(f"{self.native_outputs} outputs computed natively")
        parts.append(f"{self.nonfinite_rows} rows and {self.nonfinite_columns} columns with NaN or Inf")
        return parts[0] + " " + ", ".join(parts[1:])


def report(lhs: Array, rhs: Array, dimension_numbers: _dimensions.DimensionNumbers, contract: Contract) -> Report:
    """The report of one product of real arrays under ``contract``."""
    lhs, rhs = lax.stop_gradient(lhs), lax.stop_gradient(rhs)
    groups = _dimensions.groups(dimension_numbers, lhs.ndim, rhs.ndim)
    batch, m, n, k = _dimensions.extents(lhs.shape, rhs.shape, *groups)
    moduli = contract.modulus_count(k)
    native = contract.kind == "native"
    return Report(
        contract=contract,
        moduli=jnp.int32(moduli),
        achieved=_achieved(lhs, rhs, groups, k, moduli) if contract.kind == "normwise" else None,
        native_outputs=jnp.asarray(batch * m * n if native else 0, jnp.int_),
        nonfinite_rows=_count_nonfinite(lhs, groups[0]),
        nonfinite_columns=_count_nonfinite(rhs, groups[1]),
    )


def _count_nonfinite(x: Array, groups: Groups) -> Array:
    return jnp.count_nonzero(~jnp.isfinite(x).all(groups.contract))


def _achieved(lhs: Array, rhs: Array, groups: tuple[Groups, Groups], k: int, moduli: int) -> Array:
    """1 + [sqrt(k)/2 (x + y) + k/4 x y] / u, x = 2^-mu / norm2(a_i) and y = 2^-nu / norm2(b_j) at their largest.

    The bound of the normwise contract, with the scales that were used.
    """
    if 0 in lhs.shape or 0 in rhs.shape:
        return jnp.float64(1)
    x, y = (_largest_step(array, of_array, k, moduli) for array, of_array in zip((lhs, rhs), groups, strict=True))
    error = jnp.sqrt(float(k)) / 2 * (x + y) + k / 4 * x * y
    return 1 + error.max() * 2.0**53


def _largest_step(x: Array, groups: Groups, k: int, moduli: int) -> Array:
    """max over rows of 2^-mu / norm2(row), an array over the batch axes; 0 for rows that are exact."""
    scale, table = _quantize.statistics(x, groups, moduli)
    emax, lsb, sumsq, nnz, _ = jnp.moveaxis(table, -1, 0)
    # sumsq rounds every term up by less than one unit, and every chunk's sum once more.
    norm = jnp.sqrt(jnp.maximum(sumsq.astype(jnp.float64) - k, 1)) - jnp.sqrt(nnz.astype(jnp.float64))
    exponent = (16 - emax - scale.astype(emax.dtype)).astype(jnp.int32)
    rounded = (scale < -lsb) & (scale > _reference.SCALE_INF) & (nnz > 0)
    step = jnp.where(rounded, jnp.exp2(exponent.astype(jnp.float64)) / norm, 0)
    return step.max(tuple(range(len(groups.batch), scale.ndim)))
