"""Sharded products: shards of batch, m and n stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ._dimensions import Groups


def partitioned(
    product: Callable[[Array, Array], Array], groups: tuple[Groups, Groups]
) -> Callable[[Array, Array], Array]:
    """``product`` with the partition rule of dot_general, its contracted axes replicated.

    Every output is a function of its own row and column, so shards of the result have the bits of the whole.
    """
    lhs, rhs = groups
    names: tuple[dict[int, str], dict[int, str]] = ({}, {})
    for part in ("batch", "contract"):
        for i, axes in enumerate(zip(getattr(lhs, part), getattr(rhs, part), strict=True)):
            for of_operand, axis in zip(names, axes, strict=True):
                of_operand[axis] = f"{part}{i}"
    for of_operand, side, free in zip(names, ("lhs", "rhs"), (lhs.free, rhs.free), strict=True):
        of_operand.update({axis: f"{side}{i}" for i, axis in enumerate(free)})
    factors = tuple([of_operand[axis] for axis in sorted(of_operand)] for of_operand in names)
    result_factors = [names[0][axis] for axis in lhs.batch + lhs.free] + [names[1][axis] for axis in rhs.free]

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        del arguments
        spec = tuple(result.sharding.spec)
        spec += (None,) * (len(result_factors) - len(spec))
        of_factor = dict(zip(result_factors, spec, strict=True))

        def sharding(of_array: list[str]) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*(of_factor.get(factor) for factor in of_array)))

        # Built from the result, never taken from the operands: a shard of k is not the whole of it.
        return mesh, local, sharding(result_factors), tuple(map(sharding, factors))

    def local(x: Array, y: Array) -> Array:
        # A shard is an ordinary array: under an explicit mesh jax would give its parts shardings again.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return product(x, y)

    rule = f"{', '.join(map(' '.join, factors))} -> {' '.join(result_factors)}"
    contracted = tuple(names[0][axis] for axis in lhs.contract)
    wrapped = custom_partitioning(local)
    wrapped.def_partition(partition=partition, sharding_rule=rule, need_replication_factors=contracted)
    return wrapped
