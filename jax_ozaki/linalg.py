"""jax.numpy.linalg's products, emulated."""

from ._numpy import matmul, matrix_power, multi_dot, tensordot, vecdot

__all__ = ["matmul", "matrix_power", "multi_dot", "tensordot", "vecdot"]
