"""Speed of emulated float64 or complex128 products on a GPU, through JAX, beside jnp.dot in the same process.

    python benchmarks/gpu.py --output benchmarks/results/h200/speed.json [--merge]
        [--dtype complex128] [--sizes 1024 2048 ...] [--contracts "moduli(14)" ...] [--seconds 0.15] [--rounds 5]
        [--torch]

Times are medians of sustained runs (see jax_ozaki/_bench/timing.py): of calls of a jitted product and, up to n = 2048, of
products inside one program (ms_graph), where XLA's dispatch of a call does not count. Every contract takes turns with
jnp.dot alone, so a row's ratio is to the times of jnp.dot around its own. Stages are timed each alone, many calls in one
program; the INT8 product takes turns with cuBLAS's on the same residues. Errors are |C - AB| / (|A||B|) of sampled outputs,
absolute values of complex numbers, in units of 2^-53, against exact arithmetic.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import jax_ozaki as jo
from compiling import compile_all
from jax_ozaki import Contract, _field, _stages
from jax_ozaki._bench.timing import Variant, Watch, take_turns
from jax_ozaki._operand import Operand
from records import existing_rows, machine, merged, save

GRAPH_SIZE = 2048
LONG_SIZE = 16384  # from which on turns are four times as long, so that one call can warm up for others
GRAPH_PRODUCTS = 50
STAGE_SIZE = 4096  # from which on stages are timed
STAGE_CALLS = 10  # in one program
COPY_ELEMENTS = 2**27
SAMPLES = 8  # rows, and columns, of outputs compared with exact arithmetic
KERNEL_VARIABLES = tuple(f"JAX_OZAKI_CUDA_{x}" for x in ("MMA", "EPILOGUE", "STRASSEN", "SYMMETRY"))

Product = Callable[[Array, Array], Array]


@partial(jax.jit, static_argnums=(1, 2))
def random_matrix(seed: int, n: int, dtype: str = "float64") -> Array:
    """(rand - 1/2) exp(randn / 2), with row and column factors in [1, 2): off every 2^-53 grid. So both parts."""
    if dtype == "complex128":
        return lax.complex(*(random_matrix(10 * seed + part, n) for part in range(2)))
    keys = jax.random.split(jax.random.key(seed), 4)
    spread = jnp.exp(0.5 * jax.random.normal(keys[1], (n, n)))
    rows = jax.random.uniform(keys[2], (n, 1), minval=1, maxval=2)
    columns = jax.random.uniform(keys[3], (1, n), minval=1, maxval=2)
    return (jax.random.uniform(keys[0], (n, n)) - 0.5) * spread * rows * columns


def in_a_row(function: Callable[..., Any], calls: int, *arguments: Array) -> Variant:
    """Calls in one program. Each waits for an element of the last one's result, so that none is hoisted or merged."""

    def run(*arguments: Array) -> Array:
        def step(_: Any, total: Array) -> Array:
            total, inputs = lax.optimization_barrier((total, arguments))
            first = jax.tree.leaves(function(*inputs))[0]
            return total + first[(0,) * first.ndim].real.astype(jnp.float64)

        return lax.fori_loop(0, calls, step, jnp.zeros(()))

    return Variant(partial(jax.jit(run), *arguments), calls)


@dataclass
class Stages:
    """Every stage alone, with the bytes that it must read and write, and the INT8 product with its operations."""

    bytes_moved: dict[str, tuple[Variant, float]]
    grouped_mma: Variant
    operations: float
    factors: tuple[Array, Array]
    """Residues of one modulus, rows along k."""

    @staticmethod
    def of(a: Array, b: Array, moduli: int) -> Stages:
        field = _field.of(a.dtype)
        stages = _stages.by_platform()["cuda" if jax.default_backend() == "gpu" else "cpu"]

        def lhs(x: Array) -> Operand:
            return Operand(x[None], "brk")

        def rhs(x: Array) -> Operand:
            return Operand(x[None], "bkr")

        def quantize_lhs(x: Array) -> tuple[Array, ...]:
            return stages.quantize(lhs(x), moduli)

        def quantize_rhs(x: Array) -> tuple[Array, ...]:
            return stages.quantize(rhs(x), moduli)

        def combine(v: Array, mu: Array, nu: Array, a: Array, b: Array) -> Array:
            return stages.combine(v, mu, nu, lhs(a), rhs(b), moduli)

        multiply = partial(stages.grouped_mma, field=field)
        (ra, mu, _), (rb, nu, _) = jax.jit(quantize_lhs)(a), jax.jit(quantize_rhs)(b)
        v = jax.jit(multiply)(ra, rb)
        return Stages(
            {
                "stats": (in_a_row(lambda x: stages.stats(rhs(x), moduli), STAGE_CALLS, b), b.nbytes),
                "quantize_lhs": (in_a_row(quantize_lhs, STAGE_CALLS, a), a.nbytes + ra.nbytes),
                "quantize_rhs": (in_a_row(quantize_rhs, STAGE_CALLS, b), b.nbytes + rb.nbytes),
                "combine": (in_a_row(combine, STAGE_CALLS, v, mu, nu, a, b), v.nbytes + a.nbytes),
            },
            Variant(partial(jax.jit(multiply), ra, rb)),
            2 * field.parts * moduli * len(a) ** 3,
            (ra[0, 0], rb[0, 0]),
        )


def int8_variant(x: Array, y: Array) -> Variant:
    """One s8 x s8 -> s32 product of bytes by cuBLAS, both operands contiguous along k as it wants them."""

    @partial(jax.jit, compiler_options={"xla_gpu_enable_triton_gemm": False})
    def multiply(x: Array, y: Array) -> Array:
        x, y = (lax.bitcast_convert_type(z, jnp.int8) for z in (x, y))
        return lax.dot_general(x, y, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)

    return Variant(partial(multiply, x, y))


def torch_int8_variant(x: Array, y: Array) -> Variant:
    """The same through PyTorch, which calls cuBLASLt and takes the algorithm that it advises."""
    import torch

    left, right = (torch.from_dlpack(z).view(torch.int8) for z in (x, y))

    def call() -> Any:
        torch._int_mm(left, right.t())
        event = torch.cuda.Event()
        event.record()
        return event

    return Variant(call, wait=lambda event: event.synchronize())


def time_stages(a: Array, b: Array, counts: list[int], options: argparse.Namespace) -> dict[int, dict[str, Any]]:
    """For each number of moduli: times of the stages, their rates, and those of a copy and an INT8 product."""
    if not counts:
        return {}
    n = len(a)
    of_count = {moduli: Stages.of(a, b, moduli) for moduli in counts}
    factors = of_count[counts[0]].factors
    large = jnp.ones(COPY_ELEMENTS)
    copy, int8 = Variant(partial(jax.jit(jnp.copy), large)), {"int8_tops": int8_variant(*factors)}
    if options.torch:
        int8["int8_torch_tops"] = torch_int8_variant(*factors)
    # What moves bytes would rest the units of what multiplies.
    moving = [variant for stages in of_count.values() for variant, _ in stages.bytes_moved.values()]
    multiplying = [stages.grouped_mma for stages in of_count.values()]
    compile_all([], [*moving, *multiplying])
    take_turns([*moving, copy], seconds=options.seconds / 3, rounds=min(3, options.rounds))
    take_turns([*multiplying, *int8.values()], seconds=2 * options.seconds, rounds=min(3, options.rounds))

    reference = {name: 2 * n**3 / variant.median / 1e9 for name, variant in int8.items()}
    reference["copy_gbs"] = 2 * large.nbytes / copy.median / 1e6
    result = {}
    for moduli, stages in of_count.items():
        ms = {name: variant.median for name, (variant, _) in stages.bytes_moved.items()}
        result[moduli] = {
            "stages_ms": ms | {"grouped_mma": stages.grouped_mma.median},
            "mma_tops": stages.operations / stages.grouped_mma.median / 1e9,
            "stages_gbs": {name: size / ms[name] / 1e6 for name, (_, size) in stages.bytes_moved.items()},
            **reference,
        }
    return result


class Exact:
    """Sampled outputs of A B, exactly: every product as a sum of two floats, every sum by math.fsum."""

    def __init__(self, a: Array, b: Array) -> None:
        self.rows, self.columns = (np.linspace(0, len(a) - 1, SAMPLES, dtype=int) for _ in range(2))
        left, right = np.asarray(a[self.rows]), np.asarray(b[:, self.columns]).T
        self.scale = abs(left) @ abs(right).T
        parts = [(left, right)]
        if np.iscomplexobj(left):
            left, re, im = np.hstack([left.real, left.imag]), right.real, right.imag
            parts = [(left, np.hstack(columns)) for columns in ((re, -im), (im, re))]
        self.terms = [[[[*split_product(x, y).ravel().tolist()] for y in right] for x in left] for left, right in parts]

    def error(self, c: Array) -> float:
        """max |C - AB| / (|A||B|) over the samples, in units of 2^-53."""
        sample = np.asarray(c[self.rows][:, self.columns])
        errors = [
            [
                [math.fsum([*terms, -x]) for terms, x in zip(*row, strict=True)]
                for row in zip(of_part, part, strict=True)
            ]
            for of_part, part in zip(self.terms, (sample.real.tolist(), sample.imag.tolist()), strict=False)
        ]
        return float((np.linalg.norm(errors, axis=0) / self.scale).max() * 2**53)


def split_product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x y and its rounding error (T. J. Dekker, Numer. Math. 18, 224 (1971))."""

    def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        high = x * (2**27 + 1)
        high = high - (high - x)
        return high, x - high

    product, (xh, xl), (yh, yl) = x * y, halves(x), halves(y)
    return np.stack([product, ((xh * yh - product) + xh * yl + xl * yh) + xl * yl])


def measure(a: Array, b: Array, method: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one size."""
    n = len(a)
    scale = 4 if n >= LONG_SIZE else 1
    exact = Exact(a, b)
    counts = [contract.modulus_count(n, a.dtype) for contract in options.stages if n >= STAGE_SIZE]
    stages = time_stages(a, b, sorted(set(counts)), options)
    operations = 8 * n**3 if jnp.iscomplexobj(a) else 2 * n**3

    functions = {contract: partial(jo.dot, contract=contract) for contract in options.contracts}
    native, *calls = (Variant(partial(jax.jit(function), a, b)) for function in (jnp.dot, *functions.values()))
    in_graph = [jnp.dot, *functions.values()] if n <= GRAPH_SIZE else []
    graphs = [in_a_row(function, GRAPH_PRODUCTS, a, b) for function in in_graph]
    compile_all([native, *graphs[:1]], [*calls, *graphs[1:]])
    native_error = exact.error(native.call())

    def row(name: str, contract: Contract, ms: list[float], error: float, own_native: list[float]) -> dict[str, Any]:
        middle, native_middle = statistics.median(ms), statistics.median(own_native)
        moduli = contract.modulus_count(n, a.dtype)
        return {
            "method": name,
            "contract": str(contract),
            "dtype": a.dtype.name,
            **dict.fromkeys("mnk", n),
            "batch": 1,
            "moduli": moduli,
            "ms": middle,
            "ms_min": min(ms),
            "native_ms": native_middle,
            "ratio": native_middle / middle,
            "tflops": operations / middle / 1e9,
            "max_error": error,
            "stages_ms": {},
        } | stages.get(moduli, {})

    rows = []
    for i, (contract, call) in enumerate(zip(functions, calls, strict=True), start=1):
        error = exact.error(call.call())
        own_native = Variant(native.call)
        in_row = (Variant(graphs[0].call, GRAPH_PRODUCTS), graphs[i]) if graphs else ()
        with Watch() as watch:
            take_turns([own_native, call, *in_row], seconds=options.seconds * scale, rounds=options.rounds)
        native.ms += own_native.ms
        found = row(method, contract, call.ms, error, own_native.ms) | watch.summary()
        if in_row:
            native_in_row, call_in_row = (variant.median for variant in in_row)
            found |= {"ms_graph": call_in_row, "ratio_graph": native_in_row / call_in_row}
        rows.append(found)
    return [row("jnp.dot", Contract.native(), native.ms, native_error, native.ms), *rows]


def print_table(rows: list[dict[str, Any]]) -> None:
    header = f"{'n':>6} {'contract':14} {'N':>2} {'ms':>9} {'TFLOPS':>7} {'ratio':>6} {'in graph':>8} {'error/u':>9}"
    print(f"{header}  {'mma':>5} {'int8':>5} TOPS   stats q.lhs q.rhs combine / copy   {'W':>4} {'MHz':>5}")
    for row in rows:
        line = (
            f"{row['n']:6d} {row['contract']:14} {row['moduli']:2d} {row['ms']:9.4f} {row['tflops']:7.1f}"
            f" {row['ratio']:6.3f} {row.get('ratio_graph', math.nan):8.3f} {row['max_error']:9.3g}"
        )
        if row["stages_ms"]:
            int8 = max(row[name] for name in ("int8_tops", "int8_torch_tops") if name in row)
            shares = [rate / row["copy_gbs"] for rate in row["stages_gbs"].values()]
            line += f"  {row['mma_tops']:5.0f} {int8:5.0f}        {' '.join(f'{share:5.2f}' for share in shares)}"
            line += f"  {row['copy_gbs']:6.0f} GB/s"
        if "power_w" in row:
            line += f"   {row['power_w']:4.0f} {row['sm_mhz']:5.0f}"
        print(line)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float64", "complex128"), default="float64")
    contracts = ["moduli(14)", "moduli(15)", "mantissa(53)", "normwise(2)", "componentwise(sqrt_k)"]
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--contracts", type=Contract.parse, nargs="+", default=list(map(Contract.parse, contracts)))
    stages = list(map(Contract.parse, contracts[:2]))
    parser.add_argument(
        "--stages", type=Contract.parse, nargs="*", default=stages, help="contracts whose stages are timed"
    )
    parser.add_argument("--seconds", type=float, default=0.15, help="of a turn, after half of that to warm up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", action="store_true", help="time cuBLASLt's INT8 product through PyTorch, too")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--merge", action="store_true", help="keep the other rows of the file, if of the same kernels")
    return parser.parse_args()


def main() -> None:
    options = parse()
    jax.config.update("jax_enable_x64", True)
    meta = machine() | {"seconds": options.seconds, "rounds": options.rounds}
    old = existing_rows(options.output, meta["ffi_hash"]) if options.merge else []
    chosen = [f"{name}={os.environ[name]}" for name in KERNEL_VARIABLES if name in os.environ]
    largest = max(options.sizes)
    a, b = (random_matrix(seed, largest, options.dtype) for seed in (1, 2))
    rows: list[dict[str, Any]] = []
    for n in options.sizes:
        rows += measure(a[:n, :n], b[:n, :n], " ".join(["jax_ozaki", *chosen]), options)
        save(options.output, meta, merged(old, rows))
    print(meta)
    print_table(rows)


if __name__ == "__main__":
    main()
