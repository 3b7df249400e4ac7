"""The transitions that a transaction makes, from wherever it makes them to those who hear of them once it is committed.

A thread's own, because a transaction is one thread's. What makes a transition notes it, however deep below the call
that ``Jobs`` made, and nothing between the two passes it on.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from sqlalchemy import Connection

from omni_jobs.database.database import Database
from omni_jobs.jobs.values import Change

T = TypeVar("T")


class _Noted(threading.local):
    changes: list[Change] | None = None


_noted = _Noted()


def note(changes: Iterable[Change]) -> None:
    """Note transitions of this thread's transaction."""
    if _noted.changes is not None:
        _noted.changes.extend(changes)


def run_noting(db: Database, transaction: Callable[[Connection], T], tell: Callable[[list[Change]], None]) -> T:
    """Run a transaction as ``Database.run`` does, and call ``tell`` with its transitions, if it made any.

    A try whose COMMIT got no answer may have made them: the next one finds nothing left to do, and they are not told.
    """
    changes: list[Change] = []

    def noted(tx: Connection) -> T:
        changes.clear()
        _noted.changes = changes
        try:
            return transaction(tx)
        finally:
            _noted.changes = None

    result = db.run(noted)
    if changes:
        tell(changes)
    return result
