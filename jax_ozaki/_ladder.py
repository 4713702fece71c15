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

import math
from fractions import Fraction
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _ladder_reference, _moduli, _reference, _rungs
from ._contract import Contract
from ._handlers import CudaHandlers
from ._operand import Operand
from ._plan import Blocks, padded
from ._rungs import Certified, RungMap
from ._stages import Quantized, Rows, Stages, add_residues, in_blocks, over_blocks, with_strassen, with_symmetry


class Decided(NamedTuple):
    """The rung of every output, and what the rungs need."""

    rung: Array
    """uint8[batch, m, padded n]"""
    tiles: Array
    """uint32[batch, m tiles, n tiles]: words of tiles, see ``_rungs``."""
    worst: Array
    """float32, shaped as the tiles: the largest certified error before the final rounding, in u |A||B|."""
    lhs_wide: Array
    rhs_wide: Array
    """int32[batch, rows]: scales of the third rung."""


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

    moduli = contract.modulus_count(k)
    scales, wide_scales = (a.scale, b.scale), (found.lhs_wide, found.rhs_wide)
    certified_wide = wide_scales if contract.kind == "componentwise" else ()
    count, *wide_count = (x.max()[None] for x in modulus_counts(a, b, contract, k, *certified_wide))

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
        moduli, scales, (count,) = contract.wide_modulus_count(k), wide_scales, wide_count
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
        return Decided(*known, a.scale, b.scale)

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
    coarse = of_computed(stages.certify(sums(everywhere, _rungs.COARSE_PLANES), a, b, k=lhs.k, tau_half=tau_half))
    wide = contract.wide_modulus_count(lhs.k)
    lhs_wide, rhs_wide = (scale(rows, wide) for rows in (a, b))
    all_k = _rungs.plane_step(lhs.k, _rungs.FINE_PLANES) == 1
    fine_sums = sums(coarse.tiles, _rungs.FINE_PLANES)
    fine = stages.certify_fine(fine_sums, coarse, a, b, lhs_wide, rhs_wide, k=lhs.k, all_k=all_k, tau_half=tau_half)
    return Decided(fine.rung, fine.tiles, jnp.maximum(coarse.worst, fine.worst), lhs_wide, rhs_wide)


def exact_rungs(a: Certified, b: Certified) -> Array:
    """The rung of every output of an ``exact`` product: uint8[batch, m, n]."""
    exact = _is_exact(a)[:, :, None] & _is_exact(b)[:, None, :]
    classified = (a.scale <= _reference.SCALE_INF)[:, :, None] | (b.scale <= _reference.SCALE_INF)[:, None, :]
    return jnp.where(exact | classified, _rungs.COARSE, _rungs.SUM).astype(jnp.uint8)


def half_tolerance(contract: Contract, k: int) -> np.float32:
    """(c - 1) (1 - 2^-16) / 2, rounded down."""
    c = contract.error_factor(k)
    assert c is not None
    exact = (Fraction(c) - 1) * (1 - Fraction(1, 2**16)) / 2
    nearest = np.float32(min(float(exact), float(np.finfo(np.float32).max)))
    return nearest if Fraction(float(nearest)) <= exact else np.nextafter(nearest, np.float32(0))


def _is_exact(rows: Certified) -> Array:
    """Whether the rows' integers are the elements themselves."""
    return (rows.scale >= -rows.statistics[..., 1]) | (rows.statistics[..., 3] == 0)


def scale(rows: Certified, moduli: int) -> Array:
    """The scales for another number of moduli."""
    return _reference.scales(rows.statistics, _moduli.bound(moduli))


# The modulus count. |X_ij| is at most the product of the norms of the row's and the column's integers; their
# logarithms here are integers in units of 1/256, rounded up and one more; but that of the norm that fewer moduli hold
# rounded down, that two of them need no more moduli. A sum with another row's is an upper bound all the same.

_UNITS = 256
_NOTHING = -(2**24)
_LOG_EXCESS = 23  # log2(1 + f) <= f + 0.0861 for 0 <= f <= 1


def modulus_counts(a: Certified, b: Certified, contract: Contract, k: int, *wide: Array) -> list[Array]:
    """The fewest moduli that hold every X of a batch element; few-bit operands need few.

    One int32[batch] for the first rung, of exact() for the X of rows and columns that are not rounded; a second one for
    the third rung, where its scales ``wide``, those of rows and of columns, are given.
    """
    moduli = [contract.modulus_count(k)]
    exact = [_log_exact_norm(rows.statistics) for rows in (a, b)]
    norms = [_first_log_norm(rows, x, contract, k) for rows, x in zip((a, b), exact, strict=True)]
    if wide:
        moduli.append(contract.wide_modulus_count(k))
        limit = _log_bound(moduli[-1])
        norms += [
            _log_norm(rows._replace(scale=scales), x, limit)
            for rows, x, scales in zip((a, b), exact, wide, strict=True)
        ]
    # All at once: every reduction is a launch.
    longest = max(x.shape[1] for x in norms)
    pads = [((0, 0), (0, longest - x.shape[1])) for x in norms]
    stacked = jnp.stack([jnp.pad(x, pad, constant_values=_NOTHING) for x, pad in zip(norms, pads, strict=True)])
    largest = stacked.max(2)
    return [_fewest(largest[2 * i] + largest[2 * i + 1], n) for i, n in enumerate(moduli)]


def _fewest(log_product: Array, moduli: int) -> Array:
    """The fewest of ``moduli`` moduli that hold a product."""
    needed = jnp.full(log_product.shape, _moduli.MIN_MODULI, jnp.int32)
    for n in range(_moduli.MIN_MODULI, moduli):
        needed += log_product > math.floor(2 * _UNITS * _log2_bound(n))
    return needed


def _log2_bound(moduli: int) -> float:
    mantissa, exponent = _moduli.bound(moduli)
    return math.log2(mantissa) + exponent


def _log_bound(moduli: int) -> int:
    return math.ceil(_UNITS * _log2_bound(moduli)) + 1


def _first_log_norm(rows: Certified, exact: Array, contract: Contract, k: int) -> Array:
    limit: Array | int = _log_bound(contract.modulus_count(k))
    if fewer := contract.fewer(k):
        limit = jnp.where(rows.scale == scale(rows, fewer.moduli), _log_bound(fewer.moduli) - 2, limit)
    return _log_norm(rows, exact, limit, rounded=contract.kind != "exact")


def _log_norm(rows: Certified, exact: Array, limit: Array | int, rounded: bool = True) -> Array:
    """A bound on log2 of the norm of every row's integers, at most ``limit``, which their scale keeps: int32[batch, rows].

    It is ``exact`` for rows that are not rounded; the others count only if ``rounded``.
    """
    nothing = (rows.scale <= _reference.SCALE_INF) | (rows.statistics[..., 3] == 0)
    bound = jnp.where(_is_exact(rows), jnp.minimum(exact, limit), limit if rounded else _NOTHING)
    return jnp.where(nothing, _NOTHING, bound).astype(jnp.int32)


def _log_exact_norm(statistics: Array) -> Array:
    """A bound on log2 of the norm of every row in units of its last place, the scale of rows that are not rounded:
    int64[batch, rows]."""
    emax, lsb = statistics[..., 0], statistics[..., 1]
    sumsq = lax.bitcast_convert_type(statistics[..., 2], jnp.uint64)
    zeros = lax.clz(sumsq)
    leading = (((sumsq << zeros) - 1) >> 55).astype(jnp.int64)  # 256 (1 + f), rounded up, minus 1
    squared = _UNITS * (62 - zeros.astype(jnp.int64)) + leading + 1 + _LOG_EXCESS
    return ((squared + 1) >> 1) + 1 + _UNITS * (emax - 16 - lsb)


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
