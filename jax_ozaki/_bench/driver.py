"""The CUDA driver, called in the context that jax works in: what no jax function offers."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_void_p
from functools import cache
from typing import Any

from .unavailable import Unavailable


@cache
def _driver() -> Any:
    """The library, once jax's context is that of this thread."""
    library = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    _checked(library, "cuDevicePrimaryCtxRetain", byref(context), c_int(0))
    _checked(library, "cuCtxSetCurrent", context)
    return library


def _checked(library: Any, name: str, *arguments: Any) -> None:
    status = getattr(library, name)(*arguments)
    if status:
        raise Unavailable(f"{name} of the CUDA driver failed with error {status}")


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver; Unavailable where it fails."""
    _checked(_driver(), name, *arguments)
