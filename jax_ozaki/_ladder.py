"""Certified products: every output takes the first rung of a fixed ladder that is certain to keep the contract.

    1  X from N1 moduli, certified by |A||B| from 8-bit magnitudes over a part of k
    2  the same X, certified by 14-bit magnitudes over all of k, or by 0/1 masks where |A||B| = 0
    3  X from N2 moduli, certified likewise
    4  the products added up: in float64 in a fixed order, where c has room for its roundings, or else as integers

Statistics say in which of 64 parts of k a row has nonzeros. In others than those that row and column share, nothing is
rounded that counts, so that structural zeros are certified on the first rung; tiles of outputs multiply no more of k
than their rows and columns share.

A row's integers on the first rung are those that N1 moduli hold, or those of fewer where that rounds only few of its
elements, as it does where they are float32 values: the certificate counts them.

Which rung that is depends on the output's own row and column, on k and on the contract, and is decided in
exact arithmetic: the same bits in any batch, block or tile, on any device. A stage works on the tiles that
hold an output of its rungs. ``exact`` has rung 1 where both the row and the column fit the moduli without
being rounded, and rung 4, correctly rounded, everywhere else.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _ladder_reference, _moduli, _reference, _rungs
from ._contract import Contract
from ._handlers import CudaHandlers
from ._modulus_counts import is_exact, modulus_counts
from ._operand import Operand
from ._plan import Blocks, padded
from ._rungs import Certified, RungMap, RungModuli, RungNeeds
from ._stages import Quantized, Rows, Stages, add_residues, in_blocks, over_blocks, with_strassen, with_symmetry


class Decided(NamedTuple):
    """The rung of every output, and what the rungs need."""

    rung: Array
    """uint8[batch, m, padded n]"""
    tiles: Array
    """uint32[batch, m tiles, n tiles]: words of tiles, see ``_rungs``."""
    worst: Array
    """float32, shaped as the tiles: the largest certified error before the final rounding, in u |A||B|."""
    needs: RungNeeds
    """``exact`` has no third rung: its counts and scales are those of the first."""


def product(stages: Stages, lhs: Rows, rhs: Rows, contract: Contract, blocks: Blocks, budget: int) -> Array:
    """C = A B under a certified contract, block by block: float64[batch, m, n].

    Magnitudes are those of the whole k, which the blocks of k do not divide. ``budget`` as in ``_stages.product``.
    """
    k = lhs.operand.k
    strassen = with_strassen(stages, lhs, rhs, contract.modulus_count(k), blocks, budget)
    if symmetric := with_symmetry(stages, lhs, rhs, blocks):
        tiles = symmetric.tiles_of_itself(lhs.operand, rhs.operand)
        if lhs.operand.order == rhs.operand.order:
            strassen = None  # half of the work is less
        rows, columns = (lhs, rhs) if strassen else (quantize(stages, x, contract) for x in (lhs, rhs))
        return symmetric.mirror(_multiply(stages, rows, columns, contract, k, strassen, tiles), tiles)
    if strassen:
        return _multiply(stages, lhs, rhs, contract, k, strassen)
    if blocks.k < k:
        return in_blocks(lhs, rhs, blocks, lambda rows: rows, lambda a, b: _multiply(stages, a, b, contract, blocks.k))
    return in_blocks(
        lhs,
        rhs,
        blocks,
        lambda rows: quantize(stages, rows, contract),
        lambda a, b: _multiply(stages, a, b, contract, k),
    )


def quantize(stages: Stages, rows: Rows, contract: Contract) -> Rows:
    """The rows with what the first rung needs of them."""
    operand, k = rows.operand, rows.operand.k
    if rows.quantized:
        return rows
    moduli = contract.modulus_count(k)
    if contract.kind == "exact":
        return rows.quantize(stages, moduli)
    step = _rungs.plane_step(k, _rungs.COARSE_PLANES)
    *quantized, coarse = stages.ladder_quantize(operand, moduli, contract.fewer(k), step=step)
    return Rows(operand, Quantized(*quantized), coarse)


def _multiply(
    stages: Stages,
    lhs: Rows,
    rhs: Rows,
    contract: Contract,
    k_block: int,
    strassen: CudaHandlers | None = None,
    computed: Array | None = None,
) -> Array:
    """The product, of which the tiles that are 0 in ``computed`` hold anything. ``strassen`` gives the first rungs, but
    those of a product that is symmetric by ``computed``."""
    k = lhs.operand.k
    a, b = (certified(stages, rows, contract) for rows in (lhs, rhs))
    found = decide(stages, lhs.operand, rhs.operand, a, b, contract, computed)
    operands = lhs.operand, rhs.operand

    moduli, count, scales = contract.modulus_count(k), found.needs.first, (a.scale, b.scale)

    def plainly(tiles: Array, c: Array | None = None) -> Array:
        v = residue_products(stages, lhs, rhs, *scales, moduli, count, tiles, _rungs.FIRST, k_block)
        return stages.ladder_combine(v, *scales, *operands, count, found.rung, tiles, c, rungs=_rungs.FIRST)

    if strassen is None:
        c = plainly(found.tiles)
    elif computed is None:
        c = strassen.first_rung_by_strassen(*operands, *scales, moduli, count, _rungs.sets(found.tiles))
    else:
        symmetric, none = strassen.found_symmetric(computed), jnp.uint32(0)
        others = jnp.where(symmetric, 0, count), jnp.where(symmetric, none, _rungs.sets(found.tiles))
        c = strassen.first_rung_by_strassen(*operands, *scales, moduli, *others)
        c, tiles = lax.optimization_barrier((c, jnp.where(symmetric, found.tiles, none)))
        c = plainly(tiles, c)

    tiles, rungs = found.tiles, 1 << _rungs.SUM
    if contract.kind == "componentwise":
        # The third rung's residues come when those of the first are gone.
        c, tiles = lax.optimization_barrier((c, tiles))
        wide = 1 << _rungs.WIDE
        moduli, count = contract.wide_modulus_count(k), found.needs.wide
        scales = found.needs.lhs_wide, found.needs.rhs_wide
        unquantized = Rows(operands[0]), Rows(operands[1])
        v = residue_products(stages, *unquantized, *scales, moduli, count, tiles, wide, k_block)
        c = stages.ladder_combine(v, *scales, *operands, count, found.rung, tiles, c, rungs=wide)
    tables = a.statistics, b.statistics
    return stages.ladder_sum(*operands, *tables, found.rung, tiles, c, rungs=rungs, **last_rung(contract, k))


def last_rung(contract: Contract, k: int) -> dict[str, Any]:
    """How ``ladder_sum`` adds up."""
    return {"exact": contract.kind == "exact", "group": contract.sum_group(k)}


def certified(stages: Stages, rows: Rows, contract: Contract) -> Certified:
    """Scales of the first rung and statistics of the rows."""
    if rows.quantized:
        return Certified(rows.quantized.scale, rows.quantized.statistics, rows.coarse)
    k = rows.operand.k
    return Certified(*stages.stats(rows.operand, contract.modulus_count(k), contract.fewer(k)))


def decide(
    stages: Stages,
    lhs: Operand,
    rhs: Operand,
    a: Certified,
    b: Certified,
    contract: Contract,
    computed: Array | None = None,
) -> Decided:
    """The rung of every output. Tiles that are 0 in ``computed`` have none."""

    def of_computed(known: RungMap) -> RungMap:
        return known if computed is None else known._replace(tiles=jnp.where(computed == 0, jnp.uint32(0), known.tiles))

    if contract.kind == "exact":
        known = of_computed(_ladder_reference.rung_map(exact_rungs(a, b)))
        count = needed_moduli(a, b, contract, lhs.k).max()[None]
        return Decided(*known, RungNeeds(count, count, a.scale, b.scale))

    tau_half = half_tolerance(contract, lhs.k)

    def sums(tiles: Array, planes: int) -> Array:
        step, rungs = _rungs.plane_step(lhs.k, planes), 1 << _rungs.UNDECIDED
        tiles = tiles if step == 1 else _rungs.sets(tiles)

        def of(side: int, operand: Operand, rows: Certified) -> Array:
            if planes == _rungs.COARSE_PLANES and rows.coarse is not None:
                return rows.coarse
            return stages.planes(operand, rows.statistics, tiles, side=side, planes=planes, step=step, rungs=rungs)

        return stages.magnitude(of(0, lhs, a), of(1, rhs, b), tiles, rungs=rungs)

    everywhere = jnp.ones((lhs.batch, _rungs.tiles(lhs.rows), _rungs.tiles(rhs.rows)), jnp.uint32)
    coarse_sums, moduli = sums(everywhere, _rungs.COARSE_PLANES), rung_moduli(contract, lhs.k)
    coarse, needs = stages.certify(coarse_sums, a, b, moduli, k=lhs.k, tau_half=tau_half)
    coarse = of_computed(coarse)
    all_k = _rungs.plane_step(lhs.k, _rungs.FINE_PLANES) == 1
    fine_sums = sums(coarse.tiles, _rungs.FINE_PLANES)
    fine = stages.certify_fine(fine_sums, coarse, a, b, needs, k=lhs.k, all_k=all_k, tau_half=tau_half)
    return Decided(fine.rung, fine.tiles, jnp.maximum(coarse.worst, fine.worst), needs)


def rung_moduli(contract: Contract, k: int) -> RungModuli:
    first, fewer = contract.modulus_count(k), contract.fewer(k)
    return RungModuli(first, fewer.moduli if fewer else first, contract.wide_modulus_count(k))


def needed_moduli(a: Certified, b: Certified, contract: Contract, k: int) -> Array:
    """The moduli that hold every X of the first rung of a batch element: int32[batch]."""
    moduli = rung_moduli(contract, k)
    return modulus_counts(a, b, moduli.first, moduli.fewer, rounded=contract.kind != "exact")


def exact_rungs(a: Certified, b: Certified) -> Array:
    """The rung of every output of an ``exact`` product: uint8[batch, m, n]."""
    exact = is_exact(a)[:, :, None] & is_exact(b)[:, None, :]
    classified = (a.scale <= _reference.SCALE_INF)[:, :, None] | (b.scale <= _reference.SCALE_INF)[:, None, :]
    return jnp.where(exact | classified, _rungs.COARSE, _rungs.SUM).astype(jnp.uint8)


def half_tolerance(contract: Contract, k: int) -> np.float32:
    """(c - 1) (1 - 2^-16) / 2, rounded down."""
    c = contract.error_factor(k)
    assert c is not None
    exact = (Fraction(c) - 1) * (1 - Fraction(1, 2**16)) / 2
    nearest = np.float32(min(float(exact), float(np.finfo(np.float32).max)))
    return nearest if Fraction(float(nearest)) <= exact else np.nextafter(nearest, np.float32(0))


def residue_products(
    stages: Stages,
    lhs: Rows,
    rhs: Rows,
    lhs_scale: Array,
    rhs_scale: Array,
    moduli: int,
    count: Array,
    tiles: Array,
    rungs: int,
    k_block: int,
) -> Array:
    """v for ``ladder_combine``. Residues of blocks of k add up modulo each p."""

    def residues(rows: Rows, scale: Array, side: int) -> Array:
        if rows.quantized:
            return rows.quantized.residues
        return stages.ladder_residues(rows.operand, scale, moduli, count, tiles, side=side, rungs=rungs)

    def product(a: Rows, b: Rows) -> Array:
        return stages.ladder_mma(residues(a, lhs_scale, 0), residues(b, rhs_scale, 1), count, tiles, rungs=rungs)

    if k_block >= lhs.operand.k:
        return product(lhs, rhs)
    tiles = _rungs.sets(tiles)

    def accumulate(start: Array | int, size: int, total: Array) -> Array:
        v = product(lhs.block("k", start, size), rhs.block("k", start, size))
        return add_residues(total, v, _moduli.MODULI[:moduli])

    shape = (lhs.operand.batch, moduli, lhs.operand.rows, padded(rhs.operand.rows))
    return over_blocks(lhs.operand.k, k_block, accumulate, jnp.zeros(shape, jnp.uint8))
