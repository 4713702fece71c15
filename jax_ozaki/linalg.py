"""jax.numpy.linalg's products, emulated."""

from ._numpy import matrix_power, multi_dot

__all__ = ["matrix_power", "multi_dot"]
