"""Meshes of fake devices, and operands laid out on them."""

import jax
import pytest
from jax.sharding import AxisType, NamedSharding

from compiled import text_of


def mesh(axis_type=AxisType.Auto, **sizes):
    """A mesh of these axes, by default four devices along x."""
    sizes = sizes or {"x": 4}
    count = 1
    for size in sizes.values():
        count *= size
    if len(jax.devices()) < count:
        pytest.skip(f"needs {count} devices")
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(axis_type,) * len(sizes), devices=jax.devices()[:count]
    )


def put(devices, specs, arrays):
    return [jax.device_put(x, NamedSharding(devices, spec)) for x, spec in zip(arrays, specs, strict=True)]


def run(fn, devices, specs, arrays, out=None):
    """The results of fn on sharded arrays, and its compiled text."""
    options = {} if out is None else {"out_shardings": NamedSharding(devices, out)}
    arrays = put(devices, specs, arrays)
    program = jax.jit(fn, **options).lower(*arrays).compile()
    return program(*arrays), text_of(program)
