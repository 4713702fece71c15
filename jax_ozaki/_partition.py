"""Partition rules: what stays where it is when operands are sharded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import jax
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._compat import mesh_of_rules, package_flags
from ._dimensions import Groups
from ._shards import Shards

Factors = list[str]
"""A name for every axis of an array; equal names stand for one index."""
MeshAxes = tuple[str, ...]


class Product(Protocol):
    def __call__(self, lhs: Array, rhs: Array, /, *, shards: Shards | None = None, same: bool = False) -> Array: ...


def partitioned(
    fn: Callable[..., Any], operands: Sequence[Factors], results: Sequence[Factors], *, whole_mesh: Mesh | None = None
) -> Callable[..., Any]:
    """``fn`` with the shards of every axis of its results kept where they are, all other axes replicated.

    ``whole_mesh`` is the mesh of a program some of whose axes are manual here.
    """

    everywhere = set.intersection(*map(set, results))
    whole = tuple({f: None for factors in (*operands, *results) for f in factors if f not in everywhere})

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        del arguments
        arrays, tree = jax.tree.flatten(result)
        of_factor: dict[str, MeshAxes] = dict.fromkeys(whole, ())
        for factors, array in zip(results, arrays, strict=True):
            of_factor = _factor_axes(factors, array) | of_factor  # the first, and largest, decides

        def shardings(of_arrays: Sequence[Factors]) -> list[NamedSharding]:
            return [_sharding(mesh, factors, of_factor) for factors in of_arrays]

        return (
            whole_mesh or mesh,
            of_plain_arrays(fn),
            jax.tree.unflatten(tree, shardings(results)),
            tuple(shardings(operands)),
        )

    return _with_rule(fn, partition, operands, results, need_replication_factors=whole)


@contextmanager
def partitioning(module_context: Any) -> Iterator[Mesh | None]:
    """Let partition rules see the mesh axes that are left to the compiler where some of them are manual.

    Gives the whole mesh then, to whose devices the collectives in a rule's function belong. Raises
    NotImplementedError where the program is exported: it cannot hold a rule.
    """
    context = module_context.axis_context
    mesh: Any = getattr(context, "mesh", None)
    names, manual = (mesh.axis_names, context.manual_axes) if mesh else ((), frozenset())
    devices = mesh.size if mesh else getattr(context, "num_devices", 1)
    left = [name for name in names if name not in manual]
    if module_context.lowering_parameters.for_export and devices > 1 and (left or not names):
        raise NotImplementedError(
            f"an emulated product whose operands may be sharded over {devices} devices cannot be exported: its partition "
            "rule is a Python function. Inside jax.shard_map, over all axes of the mesh, it can."
        )
    if not left or not manual:
        yield None
        return
    one = tuple(0 if name in manual else slice(None) for name in names)
    with mesh_of_rules(Mesh(mesh.devices[one], left)):
        yield mesh


def product_factors(groups: tuple[Groups, Groups]) -> tuple[list[Factors], Factors]:
    """The factors of both operands of a product, and of its result."""
    lhs, rhs = groups
    names: tuple[dict[int, str], dict[int, str]] = ({}, {})
    for part in ("batch", "contract"):
        for i, axes in enumerate(zip(getattr(lhs, part), getattr(rhs, part), strict=True)):
            for of_operand, axis in zip(names, axes, strict=True):
                of_operand[axis] = f"{part}{i}"
    for of_operand, side, free in zip(names, ("lhs", "rhs"), (lhs.free, rhs.free), strict=True):
        of_operand.update({axis: f"{side}{i}" for i, axis in enumerate(free)})
    result = [names[0][axis] for axis in lhs.batch + lhs.free] + [names[1][axis] for axis in rhs.free]
    return [[of_operand[axis] for axis in sorted(of_operand)] for of_operand in names], result


def partitioned_product(
    product: Product, groups: tuple[Groups, Groups], unit: int, *, whole_mesh: Mesh | None = None
) -> Callable[..., Any]:
    """``product`` with the partition rule of dot_general.

    Every output is a function of its own row and column, so shards of batch, m and n have the bits of the whole.
    Shards of k go to ``product`` as such, if they can be cut into ``unit`` consecutive k each that belong together;
    what has the bits of the whole only at a price beyond its gain is gathered.
    """
    operands, factors = product_factors(groups)
    contracted = tuple(operands[0][axis] for axis in groups[0].contract)

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        specs = [_factor_axes(*x) for x in zip(operands, arguments, strict=True)]
        wanted = _factor_axes(factors, result)
        sizes = {
            f: size for fs, x in zip(operands, arguments, strict=True) for f, size in zip(fs, x.shape, strict=True)
        }
        shares = _shares_of_k(mesh, contracted, specs, wanted)
        if not _fits(mesh, contracted, sizes, shares, unit):
            shares = {}
        over = [axis for axes in shares.values() for axis in axes]

        # Built from the result and the shares of k, never taken from the operands: what they hold is only a wish.
        of_operands, of_result, scattered = dict(shares), {}, []
        for i, (factor, axes) in enumerate(wanted.items()):
            kept = axes[: next((i for i, axis in enumerate(axes) if axis in over), len(axes))]
            of_operands[factor] = of_result[factor] = kept
            rest = axes[len(kept) :]
            if rest and set(rest) <= set(over) and sizes[factor] % _devices(mesh, axes) == 0:
                of_result[factor] = axes
                scattered.append((i, rest))
        shards = Shards(tuple(over), _devices(mesh, over), tuple(scattered)) if over else None
        shardings = tuple(_sharding(mesh, of_array, of_operands) for of_array in operands)
        of_shards = of_plain_arrays(product, shards=shards, same=False)  # shards of one array are not the same
        return whole_mesh or mesh, of_shards, _sharding(mesh, factors, of_result), shardings

    return _with_rule(product, partition, operands, [factors], reduction_factors=contracted)


def _shares_of_k(
    mesh: Any, contracted: Sequence[str], specs: Sequence[dict[str, MeshAxes]], wanted: dict[str, MeshAxes]
) -> dict[str, MeshAxes]:
    """The mesh axes that the contracted axes stay split over: those that both operands are split over, or one
    of them where nothing else needs the axis."""
    taken: dict[str, MeshAxes] = {}
    for factor in contracted:
        axes = max((spec[factor] for spec in specs), key=len)
        kept: list[str] = []
        for axis in axes:
            used = {axis for spec in (*specs, wanted) for f, axes in spec.items() if f != factor for axis in axes}
            if axis in used and not all(axis in spec[factor] for spec in specs):
                break
            if mesh.shape[axis] > 1:
                kept.append(axis)
        if kept:
            taken[factor] = tuple(kept)
    return taken


def _fits(mesh: Any, contracted: Sequence[str], sizes: dict[str, int], shares: dict[str, MeshAxes], unit: int) -> bool:
    """Whether the shards of k are equal, and every unit of k lies in one shard, or in two neighbours."""
    if any(sizes[factor] % _devices(mesh, axes) for factor, axes in shares.items()) or 0 in sizes.values():
        return False
    long = [factor for factor in contracted if sizes[factor] > 1]
    local = [sizes[factor] // _devices(mesh, shares.get(factor, ())) for factor in long]
    innermost = max((i for i, factor in enumerate(long) if factor in shares), default=0)
    run = math.prod(local[innermost:])
    if run % unit == 0:
        return True
    # Neighbours in k are neighbours to ppermute where they are in the mesh's own order.
    axes = [axis for of_factor in shares.values() for axis in of_factor]
    return innermost == 0 and run >= unit and axes == sorted(axes, key=mesh.axis_names.index)


def _devices(mesh: Any, axes: Sequence[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _factor_axes(factors: Factors, array: Any) -> dict[str, MeshAxes]:
    """The mesh axes that every axis of ``array`` is split over."""
    spec = tuple(array.sharding.spec)
    spec += (None,) * (len(factors) - len(spec))
    split = [() if axes is None else axes if isinstance(axes, tuple) else (axes,) for axes in spec]
    return dict(zip(factors, split, strict=True))


def _sharding(mesh: Any, factors: Factors, of_factor: dict[str, MeshAxes]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(of_factor.get(factor) or None for factor in factors)))


def of_plain_arrays(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``fn`` of plain arrays, shards or those of one device."""

    def run(*arrays: Array) -> Any:
        # A shard is an ordinary array: under an explicit mesh jax would give its parts shardings again. And rules
        # run when the program is compiled, under whatever flag then.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())), package_flags():
            return fn(*arrays, **options)

    return run


def _with_rule(
    fn: Callable[..., Any],
    partition: Any,
    operands: Sequence[Factors],
    results: Sequence[Factors],
    **special: Sequence[str],
) -> Callable[..., Any]:
    rule = " -> ".join(", ".join(map(" ".join, arrays)) for arrays in (operands, results))
    order = [factor for factors in (*operands, *results) for factor in factors]  # Shardy wants special ones in it
    ordered = {name: tuple(sorted(factors, key=order.index)) for name, factors in special.items()}
    wrapped = custom_partitioning(of_plain_arrays(fn))
    wrapped.def_partition(partition=partition, sharding_rule=rule, **ordered)
    return wrapped
