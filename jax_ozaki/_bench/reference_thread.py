"""The references of all cases, made while other things run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax

from .operands import Shape, operands
from .reference import Reference


class ReferenceThread:
    """References made in a thread of their own on the CPU, while methods compile and their products run."""

    def __init__(self, shapes: list[Shape], phis: list[float]) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._found = {(shape, phi): self._worker.submit(_reference, shape, phi) for shape in shapes for phi in phis}

    def __enter__(self) -> ReferenceThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.shutdown(cancel_futures=True)

    def of(self, shape: Shape, phi: float) -> Reference:
        return self._found.pop((shape, phi)).result()


def _reference(shape: Shape, phi: float) -> Reference:
    with jax.enable_x64(True):  # a setting of the thread
        return Reference(*operands(shape, phi))
