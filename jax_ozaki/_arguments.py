"""Arguments as arrays of JAX, and what errors say of their dtypes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def array(name: str, x: Any) -> Array:
    """``x`` as JAX takes it; an error about an array of numpy says which argument it is and its dtype."""
    try:
        return jnp.asarray(x)
    except TypeError:
        if not isinstance(x, np.ndarray | np.generic):
            raise
        raise TypeError(f"{name} has dtype {x.dtype}: a dtype of JAX is needed.") from None


def narrowed() -> str:
    """What an error about narrower dtypes adds where JAX has no others."""
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return ""
    return ' JAX makes every float64 a float32 without jax.config.update("jax_enable_x64", True).'
