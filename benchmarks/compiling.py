"""Compile the programs of a benchmark in parallel: on a host with many cores most of its time would go there."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from jax_ozaki._bench.timing import Variant


def compile_all(variants: Iterable[Variant]) -> None:
    """Compile variants whose call is a ``partial`` of a jitted function with all of its arguments."""

    def compile_one(variant: Variant) -> None:
        assert isinstance(variant.call, partial)
        jitted, arguments = variant.call.func, variant.call.args
        variant.call = partial(jitted.lower(*arguments).compile(), *arguments)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, variants))
