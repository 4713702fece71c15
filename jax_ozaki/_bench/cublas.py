"""cuBLAS's own float64 emulation, called in the library that jax has loaded (for comparison, nothing else uses it).

The calls are eager, on the device buffers of jax arrays and on a stream of their own, with a workspace given to
the handle. API: the cuBLAS library's documentation, section "Floating point emulation".
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import byref, c_double, c_int, c_longlong, c_size_t, c_void_p
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from . import driver
from .operands import Shape
from .promise import Promise, any_order
from .timing import IN_FLIGHT
from .unavailable import Unavailable

MAX_BITS = 79
"""Ten slices of eight bits, the sign's aside: what dynamic control may use, too."""

PAIR_SCHEDULE = "not stated by the library; i + j <= slices + 1 seen in 13.1"

_COMPUTE_64F_EMULATED_FIXEDPOINT = 79
_STRATEGY_EAGER = 2
_MANTISSA_DYNAMIC, _MANTISSA_FIXED = 0, 1
_R_64F = 1
_OP_N = 0
_GEMM_DEFAULT = -1
_NON_BLOCKING_STREAM = 1
_EVENT_WITHOUT_TIMING = 2


class _Workspace:
    """One for all products, as large as any has needed: they never run at the same time."""

    array: Array | None = None
    size: int = 0
    at: int = 0

    @classmethod
    def reserve(cls, size: int) -> int:
        """The address of at least so many bytes."""
        if cls.size < size:
            cls.release()
            cls.array = jax.block_until_ready(jnp.zeros(size, jnp.uint8))
            cls.size, cls.at = size, _pointer(cls.array).value or 0
        return cls.at

    @classmethod
    def release(cls) -> None:
        cls.array, cls.size = None, 0


release_workspace = _Workspace.release


class Emulation:
    """The emulated product of one shape with ``bits`` mantissa bits, or with as many as cuBLAS chooses.

    Raises Unavailable without a GPU, or where jax's cuBLAS has no emulation.
    """

    def __init__(self, shape: Shape, bits: int | None) -> None:
        if jax.default_backend() != "gpu":
            raise Unavailable(f"cuBLAS needs an NVIDIA GPU, and jax runs on {jax.default_backend()} here")
        self._library = _load()
        self._shape, self._bits = shape, bits
        self.slices = None if bits is None else _slices(bits)
        self.workspace_bytes = _workspace_bytes(shape, MAX_BITS if bits is None else bits)
        self._workspace_at = 0
        self._retained = jnp.full(1, -1, jnp.int32)
        self._c = jnp.zeros((*shape.lhs[:-1], shape.n))
        jax.block_until_ready((self._retained, self._c))

        stream = c_void_p()
        driver.call("cuStreamCreate", byref(stream), c_int(_NON_BLOCKING_STREAM))
        self._stream = stream
        self._events = [self._event() for _ in range(IN_FLIGHT + 1)]
        self._next_event = cycle(self._events)
        self._handle = self._create()
        weakref.finalize(self, _release, self._library, self._handle, stream, self._events)
        self.promise = _promise(bits, shape.k)

    def _create(self) -> c_void_p:
        handle = c_void_p()
        self._call("cublasCreate_v2", byref(handle))
        self._call("cublasSetStream_v2", handle, self._stream)
        self._call("cublasSetEmulationStrategy", handle, c_int(_STRATEGY_EAGER))
        control = _MANTISSA_DYNAMIC if self._bits is None else _MANTISSA_FIXED
        self._call("cublasSetFixedPointEmulationMantissaControl", handle, c_int(control))
        self._call("cublasSetFixedPointEmulationMaxMantissaBitCount", handle, c_int(self._bits or MAX_BITS))
        self._call("cublasSetFixedPointEmulationMantissaBitCountPointer", handle, _pointer(self._retained))
        return handle

    def _event(self) -> c_void_p:
        event = c_void_p()
        driver.call("cuEventCreate", byref(event), c_int(_EVENT_WITHOUT_TIMING))
        return event

    def dispatch(self, a: Array, b: Array) -> c_void_p:
        """Start the product; returns the event at its end."""
        if self._workspace_at != (at := _Workspace.reserve(self.workspace_bytes)):
            self._workspace_at = at
            size = c_size_t(self.workspace_bytes)
            self._call("cublasSetWorkspace_v2", self._handle, c_void_p(self._workspace_at), size)
        # Row-major C = A B is column-major C^T = B^T A^T.
        one, zero, shape = c_double(1), c_double(0), self._shape
        m, n, k = c_int(shape.m), c_int(shape.n), c_int(shape.k)
        batched = shape.batch > 1

        def matrix(x: Array, width: c_int) -> tuple[Any, ...]:
            stride = (c_longlong(x.shape[-2] * x.shape[-1]),) if batched else ()
            return (_pointer(x), c_int(_R_64F), width, *stride)

        self._call(
            "cublasGemmStridedBatchedEx" if batched else "cublasGemmEx",
            *(self._handle, c_int(_OP_N), c_int(_OP_N), n, m, k),
            *(byref(one), *matrix(b, n), *matrix(a, k), byref(zero), *matrix(self._c, n)),
            *((c_int(shape.batch),) if batched else ()),
            *(c_int(_COMPUTE_64F_EMULATED_FIXEDPOINT), c_int(_GEMM_DEFAULT)),
        )
        event = next(self._next_event)
        driver.call("cuEventRecord", event, self._stream)
        return event

    def wait(self, event: c_void_p) -> c_void_p:
        driver.call("cuEventSynchronize", event)
        return event

    def result(self) -> Array:
        """A copy of the last product; the call must have been waited for."""
        return jax.block_until_ready(jnp.array(self._c, copy=True))

    def found(self) -> dict[str, Any]:
        """The bits that the last call retained; none, and a native product, where cuBLAS declined to emulate.

        Dynamic control reports the bits that the operands ask for: with more than the maximum the result is that of
        the native product, to the bit (cuBLAS 13.1 on an H200).
        """
        retained = int(jnp.array(self._retained, copy=True)[0])
        outputs = self._shape.batch * self._shape.m * self._shape.n
        if not 0 <= retained <= (self._bits or MAX_BITS):
            return {"retained_bits": None, "slices": None, "native_outputs": outputs}
        return {"retained_bits": retained, "slices": _slices(retained), "native_outputs": 0}

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise Unavailable(f"{name} of cuBLAS {version_text()} failed with status {status}")


def _release(library: Any, handle: c_void_p, stream: c_void_p, events: list[c_void_p]) -> None:
    library.cublasDestroy_v2(handle)
    for event in events:
        driver.call("cuEventDestroy_v2", event)
    driver.call("cuStreamDestroy_v2", stream)


def version_text() -> str:
    """The version of the cuBLAS that jax uses."""
    part = c_int()
    parts = []
    for which in range(3):  # major, minor, patch
        _library().cublasGetProperty(c_int(which), byref(part))
        parts.append(str(part.value))
    return ".".join(parts)


def _load() -> Any:
    library = _library()
    if not hasattr(library, "cublasSetFixedPointEmulationMantissaControl"):
        raise Unavailable(
            f"cuBLAS {version_text()} has no float64 emulation: 13.1 or newer is needed, as in jax[cuda13]"
        )
    return library


@cache
def _library() -> Any:
    jax.block_until_ready(jnp.ones((64, 64)) @ jnp.ones((64, 64)))  # now jax has loaded it
    names = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    found = sorted(name for name in names if Path(name).name.startswith("libcublas.so"))
    if not found:
        raise Unavailable("jax has loaded no cuBLAS")
    return ctypes.CDLL(found[0])


def _pointer(array: Array) -> c_void_p:
    address: Callable[[], int] = array.unsafe_buffer_pointer
    return c_void_p(address())


def _slices(bits: int) -> int:
    """8-bit slices that hold the mantissa bits and the sign, as documented."""
    return -(-(bits + 1) // 8)


def _workspace_bytes(shape: Shape, bits: int) -> int:
    """More than cuBLAS's documentation asks for, so that it never allocates during a call.

    A version that multiplies modulo primes holds about two planes a slice, and products of them.
    """
    planes = 2 * _slices(bits)
    m, n, k = (-(-size // 1024) * 1024 for size in (shape.m, shape.n, shape.k))
    return shape.batch * (planes * (m + n) * k + 2 * planes * m * n) + (256 << 20)


def _promise(bits: int | None, k: int) -> Promise:
    """Of a fixed number of bits: products with an identity show operands rounded to 2^-bits of the power of two above
    the largest of a row or column. Products of single bits show more: those of the slices i and j are left out for
    i + j > slices + 1 (cuBLAS 13.1). That is ``slices`` - 1 pairs at 2^(1 - bits) of both powers of two, and smaller ones.
    """
    if bits is None:
        return Promise(
            "cublas-dynamic",
            "cuBLAS: as accurate as its float64 product, or better; checked against k 2^-53 |A||B|, any sum of k rounded products",
            any_order(k),
        )

    factor = 8 * _slices(bits) * 2.0**-bits
    return Promise(
        f"cublas-fixed({bits})",
        f"cuBLAS: {bits} bits below the largest of each row and column, no bound stated; checked against "
        f"8 slices k 2^-{bits} max|row| max|column|, pairs of slices below 2^-{bits} being left out, plus k 2^-53 |A||B|",
        lambda of: factor * of.k * of.largest + any_order(k)(of),
        bits=bits,
    )
