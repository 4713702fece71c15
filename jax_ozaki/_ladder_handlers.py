"""The stages of certified products as FFI calls: shapes, dtypes and attributes of the handlers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from . import _rungs
from ._moduli import STATISTICS, Fewer
from ._operand import Axis, Operand
from ._plan import padded, padded_k
from ._rungs import Certified, RungMap, RungModuli, RungNeeds

_type = jax.ShapeDtypeStruct
_AXES: tuple[Axis, ...] = ("b", "r", "k")


class LadderHandlers:
    """What ``Handlers`` have for certified products; ``_ladder_reference`` says what the stages compute."""

    def _call(self, stage: str, results: Any, *operands: Array, aliases: Any = None, **attributes: Any) -> Any:
        raise NotImplementedError

    def _scratch(self, operand: Operand) -> jax.ShapeDtypeStruct:
        raise NotImplementedError

    def _flag_scratch(self, batch: int, m: int, n: int) -> jax.ShapeDtypeStruct:
        """What a matrix kernel needs to find the flagged tiles of its outputs."""
        del batch, m, n
        return _type((0,), jnp.uint8)

    def _certify_scratch(self, batch: int, m: int, n: int) -> jax.ShapeDtypeStruct:
        """What rows and columns bring to the certificates of their outputs."""
        del batch, m, n
        return _type((0,), jnp.uint8)

    def ladder_quantize(
        self, operand: Operand, moduli: int, fewer: Fewer | None, *, step: int
    ) -> tuple[Array, Array, Array, Array]:
        types = (residue_type(operand, moduli), *row_types(operand), _plane_type(operand, _rungs.COARSE_PLANES, step))
        attributes = {**of_fewer(moduli, fewer), "step": step, **layout(operand)}
        *results, _ = self._call("ladder_quantize", (*types, self._scratch(operand)), operand.array, **attributes)
        return tuple(results)

    def planes(
        self, operand: Operand, table: Array, tiles: Array, *, side: int, planes: int, step: int, rungs: int
    ) -> Array:
        result = _plane_type(operand, planes, step)
        attributes = {"side": side, "rungs": rungs, "step": step}
        return self._call("planes", result, operand.array, table, tiles, **attributes, **layout(operand))

    def magnitude(self, lhs: Array, rhs: Array, tiles: Array, *, rungs: int) -> Array:
        return self._matrix_product("magnitude", jnp.int32, lhs, rhs, tiles, rungs=rungs)

    def certify(
        self, sums: Array, lhs: Certified, rhs: Certified, moduli: RungModuli, *, k: int, tau_half: np.float32
    ) -> tuple[RungMap, RungNeeds]:
        (batch, m), (_, n) = lhs.scale.shape, rhs.scale.shape
        count = _type((1,), jnp.int32)
        needs = (count, count, *(_type(x.scale.shape, jnp.int32) for x in (lhs, rhs)))
        results = (*_rung_types(lhs.scale, rhs.scale), *needs, self._certify_scratch(batch, m, n))
        counts = {"moduli": moduli.first, "fewer_moduli": moduli.fewer, "wide_moduli": moduli.wide}
        found = self._call("certify", results, sums, *lhs[:2], *rhs[:2], n=n, k=k, tau_half=tau_half, **counts)
        return RungMap(*found[:3]), RungNeeds(*found[3:7])

    def certify_fine(
        self,
        sums: Array,
        known: RungMap,
        lhs: Certified,
        rhs: Certified,
        needs: RungNeeds,
        *,
        k: int,
        all_k: bool,
        tau_half: np.float32,
    ) -> RungMap:
        operands = (sums, known.rung, known.tiles, *lhs[:2], *rhs[:2], needs.lhs_wide, needs.rhs_wide)
        attributes = {"n": rhs.scale.shape[1], "k": k, "all_k": all_k, "tau_half": tau_half}
        results = _rung_types(lhs.scale, rhs.scale)
        return RungMap(*self._call("certify_fine", results, *operands, aliases={1: 0, 2: 1}, **attributes))

    def ladder_residues(
        self, operand: Operand, scale: Array, moduli: int, count: Array, tiles: Array, *, side: int, rungs: int
    ) -> Array:
        result = residue_type(operand, moduli)
        operands = (operand.array, scale, count, tiles)
        return self._call("ladder_residues", result, *operands, side=side, rungs=rungs, **layout(operand))

    def ladder_mma(self, lhs: Array, rhs: Array, count: Array, tiles: Array, *, rungs: int) -> Array:
        return self._matrix_product("ladder_mma", jnp.uint8, lhs, rhs, count, tiles, rungs=rungs)

    def _matrix_product(self, stage: str, dtype: Any, lhs: Array, rhs: Array, *flags: Array, rungs: int) -> Array:
        batch, planes, m, _ = lhs.shape
        n = rhs.shape[2]
        results = (_type((batch, planes, m, padded(n)), dtype), self._flag_scratch(batch, m, n))
        return self._call(stage, results, lhs, rhs, *flags, rungs=rungs)[0]

    def ladder_combine(
        self,
        v: Array,
        lhs_scale: Array,
        rhs_scale: Array,
        lhs: Operand,
        rhs: Operand,
        count: Array,
        rung: Array,
        tiles: Array,
        c: Array | None,
        *,
        rungs: int,
    ) -> Array:
        operands = (v, lhs_scale, rhs_scale, lhs.array, rhs.array, count, rung, tiles)
        earlier, aliases = ((), {}) if c is None else ((c,), {len(operands): 0})
        attributes = {"rungs": rungs, "moduli": v.shape[1], **strides(lhs, rhs)}
        return self._call("ladder_combine", _result(lhs, rhs), *operands, *earlier, aliases=aliases, **attributes)

    def ladder_sum(
        self,
        lhs: Operand,
        rhs: Operand,
        lhs_table: Array,
        rhs_table: Array,
        rung: Array,
        tiles: Array,
        c: Array,
        *,
        rungs: int,
        exact: bool,
        group: int,
    ) -> Array:
        operands = (lhs.array, rhs.array, lhs_table, rhs_table, rung, tiles, c)
        attributes = {"rungs": rungs, "exact": exact, "group": group, **strides(lhs, rhs)}
        return self._call("ladder_sum", _result(lhs, rhs), *operands, aliases={6: 0}, **attributes)


def _plane_type(operand: Operand, planes: int, step: int) -> jax.ShapeDtypeStruct:
    return _type((operand.batch, planes, operand.rows, padded_k(_rungs.kept(operand.k, step))), jnp.uint8)


def layout(operand: Operand) -> dict[str, int]:
    """How an operand lies in memory, as attributes."""
    of_axes = {f"stride_{axis}": operand.stride(axis) for axis in _AXES}
    return {"batch": operand.batch, "rows": operand.rows, "k": operand.k, **of_axes}


def strides(lhs: Operand, rhs: Operand) -> dict[str, int]:
    """How both operands lie in memory, as attributes of a stage that knows their other extents."""
    of_axes = {f"{name}_stride_{axis}": x.stride(axis) for name, x in (("a", lhs), ("b", rhs)) for axis in _AXES}
    return {"k": lhs.k, **of_axes}


def row_types(operand: Operand) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Scales and statistics."""
    return (
        _type((operand.batch, operand.rows), jnp.int32),
        _type((operand.batch, operand.rows, STATISTICS), jnp.int64),
    )


def residue_type(operand: Operand, moduli: int) -> jax.ShapeDtypeStruct:
    planes = operand.field.parts * moduli
    return _type((operand.batch, planes, operand.rows, padded_k(operand.k)), jnp.uint8)


def of_fewer(moduli: int, fewer: Fewer | None) -> dict[str, int]:
    """When rows take the scale of fewer moduli, as attributes."""
    moduli, most_rounded = fewer or Fewer(moduli, 0)
    return {"fewer_moduli": moduli, "most_rounded": most_rounded}


def _rung_types(lhs_scale: Array, rhs_scale: Array) -> tuple[jax.ShapeDtypeStruct, ...]:
    (batch, m), (_, n) = lhs_scale.shape, rhs_scale.shape
    of_tiles = (batch, _rungs.tiles(m), _rungs.tiles(n))
    return _type((batch, m, padded(n)), jnp.uint8), _type(of_tiles, jnp.uint32), _type(of_tiles, jnp.float32)


def _result(lhs: Operand, rhs: Operand) -> jax.ShapeDtypeStruct:
    return _type((lhs.batch, lhs.rows, rhs.rows), jnp.float64)
