"""``Observers``: those who hear of what a part of the system does, and change nothing about it.

A part that can be observed has a base class with a method for each step, which does nothing: ``RunObserver``,
``LedgerObserver``, ``IntakeObserver``, ``RelayObserver``, ``DatabaseObserver``. Metrics or a trace are a class in a
file of its own, which defines those that it needs.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Concatenate, Generic, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


class Observers(Generic[T]):
    """Observers of one base class. A step that none of them defines costs nearly nothing.

    Several threads may tell them, if the observers themselves allow it.
    """

    def __init__(self, observers: Iterable[T] = ()) -> None:
        """Keep the observers; they are told in this order."""
        self._observers = tuple(observers)
        self._hearers: dict[object, Sequence[tuple[str, Callable[..., None]]]] = {}  # by step: name and method
        self._logged: set[tuple[object, Callable[..., None], type[Exception]]] = set()

    def tell(self, step: Callable[Concatenate[T, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call each observer's method of this name: ``tell(RunObserver.claimed, claim, times)``.

        An exception harms neither what is observed nor the other observers. It is logged with its observer and
        traceback, once for each kind, because a broken observer would fill the log. The observer is told of the next
        steps all the same: what it could not take may have been one stage run's alone.
        """
        hearers = self._hearers.get(step)
        if hearers is None:
            kinds = [(observer, type(observer)) for observer in self._observers]
            hearers = self._hearers[step] = [
                (kind.__name__, getattr(observer, step.__name__))
                for observer, kind in kinds
                if getattr(kind, step.__name__) is not step
            ]
        for name, hear in hearers:
            try:
                hear(*args, **kwargs)
            except Exception as error:
                if (kind := (step, hear, type(error))) not in self._logged:
                    self._logged.add(kind)
                    logger.exception("the observer %s failed in %s", name, step.__name__)
