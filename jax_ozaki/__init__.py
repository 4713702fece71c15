"""float64 matrix products for JAX on INT8 matrix units, under a stated precision contract."""

from . import _ffi as _ffi  # loads the compiled handlers, or says why it cannot
from . import linalg
from ._contract import Contract, default_contract
from ._limits import explain
from ._numpy import dot, dot_general, einsum, inner, matmul, matvec, tensordot, vdot, vecdot, vecmat
from ._plan import Plan, default_workspace_bytes, plan
from ._prepare import Prepared, prepare
from ._report import Report

__all__ = [
    "Contract",
    "Plan",
    "Prepared",
    "Report",
    "default_contract",
    "default_workspace_bytes",
    "dot",
    "dot_general",
    "einsum",
    "explain",
    "inner",
    "linalg",
    "matmul",
    "matvec",
    "plan",
    "prepare",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]
