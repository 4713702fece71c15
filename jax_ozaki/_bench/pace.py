"""How long products took, to tell what those of the next shape will."""

from __future__ import annotations

from .methods import Method
from .operands import Shape


class Pace:
    """Seconds of a product of each method, and the work that they were for."""

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self._found: dict[tuple[str, str, float | None], tuple[float, float]] = {}

    def note(self, method: Method, shape: Shape, phi: float, seconds: float) -> None:
        self._found[_key(method, phi)] = (seconds, _work(shape))

    def expected(self, method: Method, shape: Shape, phi: float) -> float:
        """Seconds, in proportion to m n k; 0 where nothing is known."""
        seconds, work = self._found.get(_key(method, phi), (0.0, 1))
        return seconds * _work(shape) / work


def _key(method: Method, phi: float) -> tuple[str, str, float | None]:
    return method.name, method.promise.contract, phi if method.data_dependent else None


def _work(shape: Shape) -> int:
    return 2 * shape.batch * shape.m * shape.n * shape.k
