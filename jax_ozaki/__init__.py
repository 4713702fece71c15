"""float64 matrix products for JAX on INT8 matrix units, under a stated precision contract."""

import os as _os
from importlib.metadata import version as _version

from jax.extend.source_info_util import register_exclusion as _register_exclusion

from . import _ffi as _ffi  # loads the compiled handlers, or says why it cannot
from . import checkpoint_policies, linalg
from ._contract import Contract, default_contract
from ._emulate import emulate
from ._enable import enable
from ._explain_product import explain
from ._explain_program import Explanation
from ._export import export_checks
from ._numpy import dot, dot_general, einsum, inner, matmul, matvec, tensordot, vdot, vecdot, vecmat
from ._plan import Plan, default_workspace_bytes, plan
from ._prepare import Prepared, prepare
from ._report import Report

__all__ = [
    "Contract",
    "Explanation",
    "Plan",
    "Prepared",
    "Report",
    "checkpoint_policies",
    "default_contract",
    "default_workspace_bytes",
    "dot",
    "dot_general",
    "einsum",
    "emulate",
    "enable",
    "explain",
    "export_checks",
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

__version__ = _version("jax-ozaki")

# The source line of a product is one of the program. The separator keeps packages whose names begin alike.
_register_exclusion(_os.path.dirname(__file__) + _os.sep)
