"""Programs of shard_map whose products stand in loops, branches and beside collectives."""

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, PartitionSpec

RNG = np.random.default_rng(1)
ROWS, SQUARE = RNG.standard_normal((8, 5)), RNG.standard_normal((5, 5)) / 3


def in_shard_map(body):
    """``body`` of every device's rows and of a replicated matrix, in types that say so."""
    devices = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rows, whole = PartitionSpec("x"), PartitionSpec()
    return jax.shard_map(body, mesh=devices, in_specs=(rows, whole), out_specs=rows), ROWS, SQUARE


PROGRAMS = {
    f"{name} in shard_map": in_shard_map(body)
    for name, body in {
        "scan": lambda x, s: lax.scan(lambda c, _: (c @ s, None), x, None, length=3)[0],
        "stacked scan": lambda x, s: lax.scan(lambda c, _: (c, x @ s), 0.0, None, length=3)[1].sum(0),
        "fori": lambda x, s: lax.fori_loop(0, 3, lambda i, c: c @ s, x),
        "cond": lambda x, s: lax.cond(s[0, 0] > -9, lambda x: x @ s, lambda x: x, x),
        "psum": lambda x, s: x @ s + lax.psum((x @ s).sum(), "x"),
    }.items()
}
