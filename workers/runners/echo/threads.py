"""``Threads``: how the makers of an echo stage's outputs call what takes long."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Threads(Protocol):
    """``InProcessRunner.on_thread``."""

    def __call__(self, call: Callable[[], T]) -> Awaitable[T]:
        """Return the result of a call on a thread."""
