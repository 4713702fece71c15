"""The methods that are measured, each under its precision contract.

A method is named ``staged(14)`` or, with the parameters that are measured by default, ``staged``. To add one, write a
function that makes a :class:`Method` for a shape, or raises :class:`Unavailable`, and enter it in ``KINDS``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from .. import _numpy
from .._contract import Contract
from . import ablation, cublas, pipelines
from .operands import Shape
from .promise import Promise, native, of_contract
from .timing import Variant
from .unavailable import Unavailable

Facts = dict[str, Any]


def _no_facts(a: Array, b: Array) -> Facts:
    del a, b
    return {}


@dataclass(frozen=True)
class Method:
    """One way to compute a product of one shape. Without a promise there is no method."""

    name: str
    promise: Promise
    call: Callable[[Array, Array], Any]
    """Dispatches the product; ``wait`` waits for what it returns."""
    workspace_bytes: int | None
    facts: Facts = field(default_factory=dict)
    """What is known before it runs: columns of the results."""
    found: Callable[[Array, Array], Facts] = _no_facts
    """What is known only after a call with these operands."""
    wait: Callable[[Any], Any] = jax.block_until_ready
    result: Callable[[Any], Array] = lambda dispatched: dispatched
    data_dependent: bool = False
    """Whether its time depends on the operands."""
    stages: Callable[[Array, Array], dict[str, Variant]] | None = None
    """Every stage alone, to be timed."""

    def __post_init__(self) -> None:
        if not isinstance(self.promise, Promise):
            raise TypeError(f"promise={self.promise!r}: {self.name} is not measured without a stated contract.")

    def product(self, a: Array, b: Array) -> Array:
        """The product, complete."""
        return self.result(self.wait(self.call(a, b)))

    def seconds(self, a: Array, b: Array) -> float:
        """What one call takes, alone."""
        start = time.perf_counter()
        self.wait(self.call(a, b))
        return time.perf_counter() - start


@dataclass(frozen=True)
class LeftOut:
    """A method that was not measured, and why."""

    method: str
    cause: str
    shape: str | None = None


@dataclass(frozen=True)
class Kind:
    """A family of methods: what it is, and the parameters that are measured by default."""

    what: str
    make: Callable[[str, Shape], Method]
    """From the parameter and the shape; raises Unavailable, or ValueError for a parameter that cannot be."""
    defaults: tuple[str, ...] = ("",)
    alone: bool = False
    """Whether it is made before the others, by the caller's own thread: what XLA and cuBLAS tune with the GPU to
    themselves, and what has a CUDA context."""


def _native(parameter: str, shape: Shape) -> Method:
    _no_parameter("native", parameter)
    outputs = shape.batch * shape.m * shape.n
    return _compiled("native", native(), jnp.matmul, shape, {"moduli": 0, "native_outputs": outputs})


def _under_contract(name: str, contract: Contract, shape: Shape) -> Method:
    """The product as a user calls it."""
    multiply = partial(_numpy.matmul, contract=contract)
    promise = of_contract(contract, shape.k)

    facts = {"moduli": contract.modulus_count(shape.k), "native_outputs": 0, "residual": False}
    if not contract.certified:
        return _compiled(name, promise, multiply, shape, facts)

    moduli = _program(lambda a, b: multiply(a, b, return_report=True)[1].moduli, shape)

    def found(a: Array, b: Array) -> Facts:
        return {"moduli": int(moduli(a, b))}

    return _compiled(name, promise, multiply, shape, facts, found=found, data_dependent=True)


def _cublas(name: Literal["cublas-fixed", "cublas-dynamic"], parameter: str, shape: Shape) -> Method:
    if name == "cublas-dynamic":
        _no_parameter(name, parameter)
        bits = None
    elif parameter.isdecimal() and 1 <= int(parameter) <= cublas.MAX_BITS:
        bits = int(parameter)
    else:
        raise ValueError(f"the mantissa bits, from 1 to {cublas.MAX_BITS}, are needed in parentheses, as in (55).")
    emulation = cublas.Emulation(shape, bits)
    return Method(
        name,
        emulation.promise,
        emulation.dispatch,
        emulation.workspace_bytes,
        {"residual": None, "slices": emulation.slices, "pair_schedule": cublas.PAIR_SCHEDULE},
        found=lambda a, b: emulation.found(),
        wait=emulation.wait,
        result=lambda dispatched: emulation.result(),
        data_dependent=bits is None,
    )


def _fast(parameter: str, shape: Shape) -> Method:
    return _under_contract("fast", _moduli(parameter), shape)


def _contract(parameter: str, shape: Shape) -> Method:
    try:
        contract = Contract.parse(parameter)
    except ValueError as error:
        raise Unavailable(str(error)) from None
    return _under_contract("contract", contract, shape)


_tuning = Lock()
"""Of programs whose INT8 products XLA times while it compiles them: one after the other, the second as the first."""


def _pipeline(name: pipelines.Name, parameter: str, shape: Shape) -> Method:
    contract = _moduli(parameter)
    promise = of_contract(contract, shape.k)
    pipeline = pipelines.Pipeline.of(name, contract.modulus_count(shape.k), shape)
    facts = {"moduli": pipeline.moduli, "native_outputs": 0, "residual": False}
    options = pipeline.compiler_options
    with _tuning if options else nullcontext():
        stages = partial(pipeline.variants, pipeline.compiled())
        return _compiled(name, promise, pipeline.product, shape, facts, options, stages=stages)


def _moduli(parameter: str) -> Contract:
    if not parameter.isdecimal():
        raise ValueError("the number of moduli is needed in parentheses, as in (14).")
    return Contract.moduli(int(parameter))


def _no_parameter(name: str, parameter: str) -> None:
    if parameter:
        raise ValueError(f"{name} takes no parameter.")


def _compiled(
    name: str,
    promise: Promise,
    function: Callable[[Array, Array], Array],
    shape: Shape,
    facts: Facts,
    compiler_options: dict[str, Any] | None = None,
    **more: Any,
) -> Method:
    program = _program(function, shape, compiler_options)
    memory = program.memory_analysis()
    workspace = None if memory is None else int(memory.temp_size_in_bytes)
    return Method(name, promise, program, workspace, facts, **more)


def _program(function: Callable[..., Any], shape: Shape, compiler_options: dict[str, Any] | None = None) -> Any:
    operands = (jax.ShapeDtypeStruct(size, shape.dtype) for size in (shape.lhs, shape.rhs))
    return jax.jit(function).lower(*operands).compile(compiler_options)


KINDS: dict[str, Kind] = {
    "native": Kind("jnp.matmul in float64 (cublasDgemm on an NVIDIA GPU)", _native, alone=True),
    "cublas-fixed": Kind(
        "cuBLAS's own emulation with this many mantissa bits",
        partial(_cublas, "cublas-fixed"),
        ("55",),
        alone=True,
    ),
    "cublas-dynamic": Kind(
        "cuBLAS's own emulation with as many mantissa bits as the operands ask for",
        partial(_cublas, "cublas-dynamic"),
        alone=True,
    ),
    "fast": Kind("raw Contract.moduli(n), as a user calls it", _fast, ("9", "14", "15")),
    "staged": Kind(
        "quantize, XLA's INT8 product for each modulus, reduction and CRT apart",
        partial(_pipeline, "staged"),
        ("14", "15"),
    ),
    "grouped": Kind("one grouped INT8 product, a byte a modulus", partial(_pipeline, "grouped"), ("14", "15")),
    "partial-crt": Kind(
        "one grouped INT8 product, partial CRT near the accumulator", partial(_pipeline, "partial-crt"), ("14", "15")
    ),
    "grouped-sync": Kind(
        f"grouped by mma.sync, the instruction of the two ablations ({ablation.HOW})",
        partial(_pipeline, "grouped-sync"),
        ("14",),
    ),
    "partial-crt-sync": Kind(
        f"partial-crt by mma.sync ({ablation.HOW})", partial(_pipeline, "partial-crt-sync"), ("14",)
    ),
    "full-fused": Kind(
        f"all moduli and the whole CRT in one kernel, by mma.sync ({ablation.HOW})",
        partial(_pipeline, "full-fused"),
        ("14",),
    ),
    "local-prologue": Kind(
        f"residues made inside the tile from float64 operands, by mma.sync ({ablation.HOW})",
        partial(_pipeline, "local-prologue"),
        ("14",),
    ),
    "contract": Kind(
        "a contract of jax_ozaki, as a user calls it",
        _contract,
        ("mantissa(53)", "normwise(2)", "componentwise(sqrt_k)", "exact"),
    ),
}


def parse(names: Iterable[str]) -> list[tuple[str, str]]:
    """(kind, parameter) of every method named; ValueError for a name that is none."""
    chosen: list[tuple[str, str]] = []
    for name in names:
        found = re.fullmatch(r"([a-z-]+)(?:\((.*)\))?", name.strip())
        kind, parameter = (found[1], found[2]) if found else ("", None)
        if kind == "contracts":
            kind = "contract"
        if kind not in KINDS:  # a contract by its own name
            kind, parameter = "contract", str(_parsed(name))
        chosen += [(kind, x) for x in (KINDS[kind].defaults if parameter is None else (parameter,))]
    return list(dict.fromkeys(chosen))


def _parsed(name: str) -> Contract:
    try:
        return Contract.parse(name)
    except ValueError:
        raise ValueError(f"{name!r} is no method: {', '.join(KINDS)}, or a contract, is needed.") from None


def make(chosen: Sequence[tuple[str, str]], shape: Shape) -> tuple[list[Method], list[LeftOut]]:
    """The methods for one shape, and those that cannot be had here, each with its cause. Most compile in parallel."""
    found: dict[tuple[str, str], Method | LeftOut] = {}
    waiting = []
    for kind, parameter in chosen:
        if KINDS[kind].alone:
            found[kind, parameter] = _attempt(kind, parameter, shape)
        else:
            waiting.append((kind, parameter))
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        found |= zip(waiting, compilers.map(lambda x: _attempt(x[0], x[1], shape), waiting), strict=True)
    outcomes = [found[x] for x in chosen]
    return [x for x in outcomes if isinstance(x, Method)], [x for x in outcomes if isinstance(x, LeftOut)]


def _attempt(kind: str, parameter: str, shape: Shape) -> Method | LeftOut:
    try:
        with jax.enable_x64(True):  # a setting of the thread
            return KINDS[kind].make(parameter, shape)
    except (Unavailable, ValueError, jax.errors.JaxRuntimeError) as error:
        name = parameter if kind == "contract" else kind + (f"({parameter})" if parameter else "")
        return LeftOut(name, " ".join(str(error).split()))
