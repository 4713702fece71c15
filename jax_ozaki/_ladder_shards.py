"""Certified products of a contraction split over a mesh: the ladder of ``_ladder`` with the bits of one device.

Every rung is decided from whole rows, and from magnitudes that are added up over the mesh as integers. So are the
X of the first three rungs. Work that no output needs is behind a condition that all shards of k agree on, with its
collectives: the finer magnitudes, the third rung, and the last one, for which the operands are gathered. Its
sums have no form that is short enough to send for every output.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import jax.numpy as jnp
from jax import Array, lax

from . import _ladder, _ladder_reference, _modulus_counts, _rungs
from ._contract import Contract
from ._ladder_reference import OutputBounds
from ._operand import Operand
from ._plan import Blocks
from ._rungs import Certified
from ._shards import Shards, StagesOfShards, aligned, finished
from ._stages import Rows, Stages, in_blocks


def product(
    stages: Stages,
    lhs: Operand,
    rhs: Operand,
    contract: Contract,
    blocks: Blocks,
    shards: Shards,
    shape: tuple[int, ...],
) -> Array:
    """This shard's part of C = A B under a certified contract, for a shard of k of both operands; ``shape`` is that of
    all of C."""
    of_shards = StagesOfShards(stages, shards.of_blocks(lhs, rhs, blocks), shape)
    k = lhs.k * shards.count

    def multiply(a: Rows, b: Rows) -> Array:
        return _Product(stages, of_shards, a, b, contract, k, blocks.k).outputs()

    c = in_blocks(Rows(lhs), Rows(rhs), blocks, lambda rows: rows, multiply)
    return finished(c, of_shards.shards, shards, shape)


class _Product:
    """One block of rows and columns. Rungs and outputs are those of the part that this shard keeps."""

    def __init__(
        self, stages: Stages, of_shards: StagesOfShards, lhs: Rows, rhs: Rows, contract: Contract, k: int, k_block: int
    ) -> None:
        self.stages, self.of_shards, self.lhs, self.rhs = stages, of_shards, lhs, rhs
        self.contract, self.k, self.k_block = contract, k, k_block
        self.extents = lhs.operand.batch, lhs.operand.rows, rhs.operand.rows

    def outputs(self) -> Array:
        moduli = self.contract.modulus_count(self.k)
        fewer = self.contract.fewer(self.k)
        a, b = (Certified(*self.of_shards.stats(x, moduli, fewer)) for x in (self.lhs.operand, self.rhs.operand))
        exact = self.contract.kind == "exact"
        rung = self.of_shards.part(_ladder.exact_rungs(a, b)) if exact else self.decide(a, b)
        tiles = self.tiles(rung)
        c = self.rounded(a.scale, b.scale, moduli, tiles, _rungs.FIRST)
        if not exact:
            moduli, wide = self.contract.wide_modulus_count(self.k), 1 << _rungs.WIDE
            scales = _modulus_counts.scale(a, moduli), _modulus_counts.scale(b, moduli)

            def with_third(c: Array) -> Array:
                return jnp.where(rung == _rungs.WIDE, self.rounded(*scales, moduli, tiles, wide), c)

            c = lax.cond(_holds(tiles, _rungs.WIDE), with_third, lambda c: c, c)
        return lax.cond(_holds(tiles, _rungs.SUM), lambda c: self.with_sums(c, rung, a, b), lambda c: c, c)

    def decide(self, a: Certified, b: Certified) -> Array:
        """The rung of every output under a ``componentwise`` contract."""
        tau_half = _ladder.half_tolerance(self.contract, self.k)
        everywhere = jnp.ones((self.extents[0], *map(_rungs.tiles, self.extents[1:])), jnp.uint32)
        coarse = self.of_shards.sum(self.magnitudes(a, b, everywhere, _rungs.COARSE_PLANES)[:, 0])
        holds, _ = _ladder_reference.certificate(self.bounds(a, b, _rungs.COARSE_BITS), coarse, tau_half)
        rung = holds.astype(jnp.uint8) * jnp.uint8(_rungs.COARSE)
        tiles = self.tiles(rung)

        def fine() -> Array:
            sums = self.magnitudes(a, b, tiles, _rungs.FINE_PLANES)
            magnitude = self.of_shards.sum(_ladder_reference.fine_magnitude(sums))
            zero = jnp.zeros((), bool)
            if _rungs.plane_step(self.k, _rungs.FINE_PLANES) == 1:
                zero = self.of_shards.sum(sums[:, 3]) == 0
            narrow = self.bounds(a, b, _rungs.FINE_BITS)
            moduli = self.contract.wide_modulus_count(self.k)
            wide_a, wide_b = (x._replace(scale=_modulus_counts.scale(x, moduli)) for x in (a, b))
            wide = self.bounds(wide_a, wide_b, _rungs.FINE_BITS)
            found, _ = _ladder_reference.fine_rung(magnitude, zero, narrow, wide, tau_half)
            return jnp.where(rung == _rungs.UNDECIDED, found, rung)

        return lax.cond(_holds(tiles, _rungs.UNDECIDED), fine, lambda: rung)

    def magnitudes(self, a: Certified, b: Certified, tiles: Array, planes: int) -> Array:
        """Those of this shard's k: int32[batch, planes, m, n]."""
        step, rungs = _rungs.plane_step(self.k, planes), 1 << _rungs.UNDECIDED

        def planes_of(x: Operand, table: Array, side: int) -> Array:
            x = aligned(x, self.of_shards.shards, _rungs.PLANE_BLOCK * step)
            return self.stages.planes(x, table, tiles, side=side, planes=planes, step=step, rungs=rungs)

        of_lhs, of_rhs = planes_of(self.lhs.operand, a.statistics, 0), planes_of(self.rhs.operand, b.statistics, 1)
        return self.stages.magnitude(of_lhs, of_rhs, tiles, rungs=rungs)[..., : self.extents[2]]

    def bounds(self, a: Certified, b: Certified, plane_bits: int) -> OutputBounds:
        bounds = _ladder_reference.output_bounds(a, b, plane_bits, self.k)
        return OutputBounds(*(self.of_shards.part(jnp.broadcast_to(x, self.extents)) for x in bounds))

    def tiles(self, rung: Array) -> Array:
        """The rungs in every tile, those of all shards' parts."""
        tiles = self.rung_map(rung, _NO_RUNG).tiles
        if not self.of_shards.shards.scattered:
            return tiles
        rungs = jnp.arange(_NO_RUNG, dtype=jnp.uint32)[:, None, None, None]
        found = self.of_shards.shards.any(tiles >> rungs & 1)
        return reduce(or_, found.astype(jnp.uint32) << rungs)

    def rung_map(self, rung: Array, elsewhere: int) -> _rungs.RungMap:
        whole = self.of_shards.whole(rung, *self.extents, elsewhere)
        return _ladder_reference.rung_map(whole)

    def rounded(self, lhs_scale: Array, rhs_scale: Array, moduli: int, tiles: Array, rungs: int) -> Array:
        """The sum of all shards' X, rounded, in the tiles of ``rungs``."""
        count = jnp.array([moduli], jnp.int32)
        scales = lhs_scale, rhs_scale
        v = _ladder.residue_products(
            self.stages, self.lhs, self.rhs, *scales, moduli, count, tiles, rungs, self.k_block
        )
        return self.of_shards.combine(v, *scales, self.lhs.operand, self.rhs.operand, moduli)

    def with_sums(self, c: Array, rung: Array, a: Certified, b: Certified) -> Array:
        """``c`` with the outputs of the last rung, from the whole k in its order."""

        def gathered(x: Operand) -> Operand:
            k = x.order.index("k")
            return Operand(lax.all_gather(x.array, self.of_shards.shards.axes, axis=k, tiled=True), x.order)

        mine = self.rung_map(rung, _rungs.UNDECIDED)
        c = self.of_shards.whole(c, *self.extents)
        operands = gathered(self.lhs.operand), gathered(self.rhs.operand)
        tables = a.statistics, b.statistics
        how = _ladder.last_rung(self.contract, self.k)
        c = self.stages.ladder_sum(*operands, *tables, mine.rung, mine.tiles, c, rungs=1 << _rungs.SUM, **how)
        return self.of_shards.part(c)


_NO_RUNG = _rungs.SUM + 1
"""Stands for the outputs of other shards."""


def _holds(tiles: Array, rung: int) -> Array:
    return ((tiles & jnp.uint32(1 << rung)) != 0).any()
