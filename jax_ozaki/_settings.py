"""Which products of a program are emulated, and how: what ``emulate`` and ``enable`` are told."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jax

from . import _dimensions
from ._contract import Contract, resolve
from ._plan import resolve_workspace
from ._rewrite import emulates


@dataclass(frozen=True)
class Settings:
    """A contract, a budget, and the size below which products stay native."""

    contract: Contract
    workspace_bytes: int
    min_size: float

    def native_because(self, lhs: Any, rhs: Any, result: Any, params: dict[str, Any]) -> str | None:
        """Why a dot_general of these avals stays native, None if it is emulated. The only place that decides."""
        if not emulates(lhs.dtype, rhs.dtype, result.dtype):
            return f"{result.dtype} is not emulated"
        if self.contract.kind == "native":
            return "the contract is native"
        size = product_size(lhs, rhs, params["dimension_numbers"])
        if size < self.min_size:
            return f"size {size:.4g} < min_size {self.min_size:.4g}"
        return None


def settings(
    contract: Contract | None = None, min_size: float | None = None, workspace_bytes: int | None = None
) -> Settings:
    """Settings with the defaults of the context, the process and the device filled in."""
    size = crossover() if min_size is None else float(min_size)
    return Settings(resolve(contract), resolve_workspace(workspace_bytes), size)


def check_settings(contract: Any, min_size: Any, workspace_bytes: Any) -> None:
    """Raise for arguments that :func:`settings` cannot take, without a look at the devices."""
    if contract is not None:
        resolve(contract)
    if workspace_bytes is not None:
        resolve_workspace(workspace_bytes)
    if min_size is None:
        return
    if isinstance(min_size, bool) or not isinstance(min_size, int | float):
        raise TypeError(f"min_size={min_size!r}: a number is needed.")
    if not min_size >= 0:
        raise ValueError(f"min_size={min_size!r}: a number of at least 0 is needed.")


def product_size(lhs: Any, rhs: Any, dimension_numbers: Any) -> float:
    """The harmonic mean of m, n and k: the n of the square product with the same work for each element it touches.

    That ratio, m n k / (m k + k n + m n), decides which way is faster. A batch has the size of one of its products.
    """
    groups = _dimensions.groups(_dimensions.canonical(dimension_numbers), lhs.ndim, rhs.ndim)
    _, *sizes = _dimensions.extents(lhs.shape, rhs.shape, *groups)
    return 3 / math.fsum(1 / size for size in sizes) if all(sizes) else 0.0


def crossover() -> float:
    """The size from which an emulated product is faster than a native one on the default device.

    Measured, and recorded in ``data/crossover.json``; 0 for a device that is not there. On a CPU the emulated
    product is never faster, so speed is not what it is asked for: 0, nothing stays native.
    """
    return _crossovers().get(jax.devices()[0].device_kind, 0.0)


@cache
def _crossovers() -> dict[str, float]:
    text = (resources.files("jax_ozaki") / "data" / "crossover.json").read_text(encoding="utf-8")
    return {device: float(entry["size"]) for device, entry in json.loads(text).items()}
