"""The switch of ``enable``, where lowering rules see it."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from ._contract import Contract


class Switch(NamedTuple):
    """What ``enable`` was told; None stands for a default."""

    contract: Contract | None = None
    min_size: float | None = None
    workspace_bytes: int | None = None


_ENVIRONMENT = "JAX_OZAKI_ENABLE"


def _process_default() -> Switch | None:
    text = os.environ.get(_ENVIRONMENT, "")
    if text not in ("", "0", "1"):
        raise ValueError(f"{_ENVIRONMENT}={text!r}: 1 or 0 is needed.")
    return Switch() if text == "1" else None


context = jax.make_user_context(_process_default())
"""A :class:`Switch`, or None where products are lowered natively. Part of the jit key, and thread-local."""


_METADATA = {"jax_ozaki": "native"}


def native() -> Any:
    """A block whose products stay native under ``enable``: those whose call asks for that."""
    return set_xla_metadata(**_METADATA)


def is_native(equation_context: Any) -> bool:
    """Whether an equation was made in a :func:`native` block."""
    metadata = (equation_context and equation_context.xla_metadata) or {}
    return metadata.items() >= _METADATA.items()
