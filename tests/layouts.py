"""How the operands of a batched product may lie in memory."""

import numpy as np

# Axes of a_bmk and b_bkn; an operand without b is shared by the whole batch.
LAYOUTS = (
    ("bmk", "bkn"),
    ("bkm", "bkn"),
    ("bmk", "bnk"),
    ("bkm", "bnk"),
    ("mbk", "kbn"),
    ("kbm", "nbk"),
    ("mkb", "knb"),
    ("bmk", "kn"),
    ("km", "bnk"),
)  # fmt: skip


def stored(x, axes, order):
    """x as an array whose axes are in the order given."""
    x = x if "b" in order else x[0]
    axes = axes if "b" in order else axes[1:]
    return np.ascontiguousarray(np.transpose(x, [axes.index(axis) for axis in order]))
