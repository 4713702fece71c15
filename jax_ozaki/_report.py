"""What a product achieved, as arrays on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from . import _dimensions, _field, _moduli, _quantize, _reference, _rungs
from ._certify import certify
from ._contract import Contract
from ._dimensions import Groups


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("moduli", "achieved", "rungs", "native_outputs", "nonfinite_rows", "nonfinite_columns"),
    meta_fields=("contract",),
)
@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What one product used and achieved: a pytree of device scalars, one set a product under ``vmap``; compared by
    identity.

    No field depends on blocks, batch or device.

    Attributes:
        contract: the contract that was kept; ``native`` for dtypes other than float64 and complex128.
        moduli: int32, the moduli multiplied; 0 for a native product. In a certified product, those that the
            operands of its first rung need.
        achieved: float64, a bound on max abs(C - AB)_ij / (u norm2(a_i) norm2(b_j)) for ``normwise``, on
            max abs(C - AB)_ij / (u (\\|A\\| \\|B\\|)_ij) for ``componentwise`` and ``exact``; None where the contract
            has no bound, or is not reproducible: k may be sharded then.
        rungs: int64[4], the outputs that each rung of a certified product gave: moduli, certified by coarse and by
            fine magnitudes; more moduli; sums of products. None for other contracts.
        native_outputs: int64, outputs computed by XLA's own product.
        nonfinite_rows: int64, rows of the lhs that hold a NaN or an Inf, over the whole batch.
        nonfinite_columns: int64, columns of the rhs that do.
    """

    contract: Contract
    moduli: Array
    achieved: Array | None
    rungs: Array | None
    native_outputs: Array
    nonfinite_rows: Array
    nonfinite_columns: Array

    def __str__(self) -> str:
        parts = ["XLA's product" if self.contract.kind == "native" else f"{_most(self.moduli)} moduli"]
        if self.achieved is not None:
            scale = "|A||B|" if self.contract.certified else "norm2(row) norm2(column)"
            parts.append(f"error at most {_largest(self.achieved, '.4g')} u {scale}")
        if self.rungs is not None:
            names = ("coarse magnitudes", "fine magnitudes", "more moduli", "sums of products")
            indexed = isinstance(self.rungs, Array | np.ndarray)  # jax makes instances whose leaves are no arrays
            counts = [f"{_most(self.rungs[..., i] if indexed else self.rungs)} by {x}" for i, x in enumerate(names)]
            parts.append("outputs " + " + ".join(counts))
        if self.contract.kind != "native":
            parts.append(f"{_most(self.native_outputs)} outputs computed natively")
        parts.append(f"{_most(self.nonfinite_rows)} rows and {_most(self.nonfinite_columns)} columns with NaN or Inf")
        return f"{self.contract}: {', '.join(parts)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


def _largest(x: Any, form: str = "") -> str:
    """The largest number in ``x``; a tracer, or what else stands for numbers, as it prints itself."""
    known = isinstance(x, get_args(ArrayLike)) and not isinstance(x, jax.core.Tracer)
    return format(np.max(np.asarray(x)).item(), form) if known else str(x)


def _most(x: Any) -> str:
    return f"at most {_largest(x)}" if np.ndim(x) else _largest(x)


def report(lhs: Array, rhs: Array, dimension_numbers: _dimensions.DimensionNumbers, contract: Contract) -> Report:
    """The report of one product of real arrays under ``contract``."""
    # The fields are 64-bit, whatever the flag says.
    with jax.enable_x64(True):
        return _report(lhs, rhs, dimension_numbers, contract)


def _report(lhs: Array, rhs: Array, dimension_numbers: _dimensions.DimensionNumbers, contract: Contract) -> Report:
    lhs, rhs = lax.stop_gradient(lhs), lax.stop_gradient(rhs)
    groups = _dimensions.groups(dimension_numbers, lhs.ndim, rhs.ndim)
    batch, m, n, k = _dimensions.extents(lhs.shape, rhs.shape, *groups)
    moduli = jnp.int32(contract.modulus_count(k, lhs.dtype))
    native, c, rungs = contract.kind == "native", contract.error_factor(k), None
    if c is None or not contract.reproducible:
        achieved = None
    elif contract.certified:
        rung, worst, counts = certify(lhs, rhs, dimension_numbers, contract)
        rungs = jnp.stack([jnp.count_nonzero(rung == r).astype(jnp.int64) for r in _rungs.RUNGS])
        moduli = counts.max(initial=0)
        achieved = _certified(worst.max(initial=0), rungs[-1] > 0, contract.sum_error_factor(k), c)
    else:
        parts = _field.of(lhs.dtype).parts
        achieved = _achieved(lhs, rhs, groups, parts * k, contract.modulus_count(k, lhs.dtype), c)
    return Report(
        contract=contract,
        moduli=moduli,
        achieved=achieved,
        rungs=rungs,
        native_outputs=jnp.int64(batch * m * n if native else 0),
        nonfinite_rows=_count_nonfinite(lhs, groups[0]),
        nonfinite_columns=_count_nonfinite(rhs, groups[1]),
    )


def _count_nonfinite(x: Array, groups: Groups) -> Array:
    return jnp.count_nonzero(~jnp.isfinite(x).all(groups.contract)).astype(jnp.int64)


def _certified(worst: Array, summed: Array, of_sums: float, c: float) -> Array:
    """The bound of a certified contract: of the worst certificate, and ``of_sums`` if there are any; at most ``c``."""
    # Above the roundings of the float32 certificate, and the final rounding of an error.
    above = 1 + 2.0**-20
    bound = jnp.maximum(1 + worst.astype(jnp.float64) * above, jnp.where(summed, of_sums, 1.0))
    return jnp.minimum(bound, c)


def _achieved(lhs: Array, rhs: Array, groups: tuple[Groups, Groups], k: int, moduli: int, c: float) -> Array:
    """1 + [sqrt(k)/2 (x + y) + k/4 x y] / u, x = 2^-mu / norm2(a_i) and y = 2^-nu / norm2(b_j) at their largest.

    The bound of the normwise contract, with the scales that were used; at most the contract's own ``c``. ``k`` counts
    the parts of complex elements.
    """
    if 0 in lhs.shape or 0 in rhs.shape:
        return jnp.float64(1)
    x, y = (_largest_step(array, of_array, k, moduli) for array, of_array in zip((lhs, rhs), groups, strict=True))
    error = jnp.sqrt(float(k)) / 2 * (x + y) + k / 4 * x * y
    # Above the roundings of these lines; 1 where nothing but the result was rounded.
    bound = 1 + error.max() * (2.0**53 * (1 + 2.0**-40))
    return jnp.minimum(jnp.where(bound > 1, jnp.nextafter(bound, jnp.inf), 1.0), c)


def _largest_step(x: Array, groups: Groups, k: int, moduli: int) -> Array:
    """max over rows of 2^-mu / norm2(row), an array over the batch axes; 0 for rows that are exact."""
    scale, table = _quantize.statistics(x, groups, moduli)
    emax, lsb, sumsq, nnz = jnp.moveaxis(table[..., :4], -1, 0)
    scale = scale.astype(jnp.int64)
    # sumsq rounds every term up by less than one unit, and every chunk's sum once more.
    chunks = -(-k // _moduli.CHUNK)
    norm = jnp.sqrt(jnp.maximum(sumsq - chunks, 1).astype(jnp.float64)) - jnp.sqrt(nnz.astype(jnp.float64))
    power = lax.bitcast_convert_type((1023 + 16 - emax - scale) << 52, jnp.float64)
    rounded = (scale < -lsb) & (scale > _reference.SCALE_INF) & (nnz > 0)
    step = jnp.where(rounded, power / norm, 0.0)
    return step.max(tuple(range(len(groups.batch), scale.ndim)))
