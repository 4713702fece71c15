"""Compile the programs of a benchmark in parallel: on a host with many cores most of its time would go there.

XLA compiles a native product by timing several kernels on the GPU, which nothing else must disturb: native ones first,
each alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from jax_ozaki._bench.timing import Variant


def compile_all(native: Iterable[Variant], others: Iterable[Variant]) -> None:
    """Compile variants whose call is a ``partial`` of a jitted function with all of its arguments."""

    def compile_one(variant: Variant) -> None:
        assert isinstance(variant.call, partial)
        jitted, arguments = variant.call.func, variant.call.args
        variant.call = partial(jitted.lower(*arguments).compile(), *arguments)

    for variant in native:
        compile_one(variant)
    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, others))
