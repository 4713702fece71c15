"""How the programs of benchmarks compile."""

from functools import partial

import jax
import numpy as np
import pytest

from compiling import compile_all
from jax_ozaki._bench.timing import Variant


def test_compile_all():
    """Native programs first, one after the other; then each call is that of a compiled program."""
    traced = []

    def variant(name, factor):
        def fn(x):
            traced.append(name)
            return factor * x

        return Variant(partial(jax.jit(fn), np.ones(3)))

    native = [variant("native", 2), variant("native in a row", 3)]
    others = [variant(f"other {i}", i) for i in range(4)]
    compile_all(native, others)
    assert traced[:2] == ["native", "native in a row"] and sorted(traced[2:]) == [f"other {i}" for i in range(4)]
    for one, factor in zip([*native, *others], (2, 3, *range(4)), strict=True):
        assert isinstance(one.call.func, jax.stages.Compiled)
        np.testing.assert_array_equal(one.call(), np.full(3, float(factor)))
    assert len(traced) == 6


def test_compile_all_needs_the_arguments():
    with pytest.raises(AssertionError):
        compile_all([Variant(lambda: None)], [])
