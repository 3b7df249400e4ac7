"""``Observers``: those who hear of what a part of the system does, and change nothing about it.

A part that can be observed has a base class with a method for each step, which does nothing: ``RunObserver``,
``LedgerObserver``. A metric, a trace or a statistic is a class in a file of its own, which defines those that it needs.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Concatenate, Generic, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


class Observers(Generic[T]):
    """Observers of one base class, for one thread."""

    def __init__(self, observers: Iterable[T] = ()) -> None:
        """Keep the observers; they are told in this order."""
        self._observers = tuple(observers)
        self._logged: set[tuple[int, str, type[Exception]]] = set()

    def tell(self, step: Callable[Concatenate[T, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call each observer's method of this name: ``tell(RunObserver.claimed, claim, times)``.

        An exception harms neither what is observed nor the other observers. It is logged with its observer and
        traceback, once for each kind, because a broken observer would fill the log. The observer is told of the next
        steps all the same: what it could not take may have been one stage run's alone.
        """
        for observer in self._observers:
            try:
                getattr(observer, step.__name__)(*args, **kwargs)
            except Exception as error:
                kind = (id(observer), step.__name__, type(error))
                if kind not in self._logged:
                    self._logged.add(kind)
                    logger.exception("the observer %s failed in %s", type(observer).__name__, step.__name__)
