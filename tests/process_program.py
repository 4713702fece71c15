"""One process of a program of several: products over all their devices, compared with the whole product, and those of
uncertified contracts in gradients too.

python process_program.py COORDINATOR PROCESSES ID CONTRACT:LAYOUT...
"""

import sys
from functools import cache, partial

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ozaki as jo
from generators import phi
from oracle import assert_same_bits

LAYOUTS = {
    "batch": (P("x"), P("x"), P("x")),
    "m": (P(None, "x"), P(), P(None, "x")),
    "n": (P(), P(None, None, "x"), P(None, None, "x")),
    "k": (P(None, None, "x"), P(None, "x"), P()),
    "k, result over m": (P(None, None, "x"), P(None, "x"), P(None, "x")),
}


def main():
    coordinator, processes, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, processes, rank)
    assert jax.process_count() == processes
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))

    rng = np.random.default_rng(0)  # the same operands in every process
    a, b = phi(2)(rng, (8, 16, 8 * 130)), phi(2)(rng, (8, 8 * 130, 8))

    @cache
    def on_one_device(contract):
        """The product, its value, and its derivatives along that, where they are compared."""
        matmul = partial(jo.matmul, contract=contract)
        with jax.default_device(jax.local_devices()[0]):
            whole = np.asarray(matmul(a, b))
            pulled = () if contract.certified else jax.vjp(matmul, a, b)[1](whole)
        return matmul, whole, [np.asarray(x) for x in pulled]

    def put(x, spec):
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])

    def compare(sharded, expected):
        for shard in sharded.addressable_shards:
            assert_same_bits(shard.data, expected[shard.index])

    for name in sys.argv[4:]:
        contract, layout = name.split(":")
        matmul, whole, gradients = on_one_device(jo.Contract.parse(contract))
        *specs, out = LAYOUTS[layout]
        arrays = [put(x, spec) for x, spec in zip((a, b), specs, strict=True)]
        compare(jax.jit(matmul, out_shardings=NamedSharding(mesh, out))(*arrays), whole)
        if gradients:
            pulled = jax.jit(lambda a, b, w, f=matmul: jax.vjp(f, a, b)[1](w))(*arrays, put(whole, out))
            for x, expected in zip(pulled, gradients, strict=True):
                compare(x, expected)
        print(f"{rank}: {name}: same bits on {len(jax.local_devices())} of {jax.device_count()} devices", flush=True)
    jax.distributed.shutdown()


main()
