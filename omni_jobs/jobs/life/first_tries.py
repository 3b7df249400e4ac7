"""First tries: a client that sends a request again, without a key, gets the job of its first try.

Before a request submits, its row says under which idempotency key. A repetition takes the key of such a row, so it
submits the same job, on any server, also while the first try is still being written. Several clients may send the same
request at once, and each repetition has to find a row of its own: a repetition with the number n takes a row that none
with this number has taken, first one whose client is known to have got no answer, then the newest. The row of a request
goes with its answer, so that a later request, which is none of its repetitions, does not find it.
"""

import secrets
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, delete, select, update

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_unless_there
from omni_jobs.database.tables import FirstTryRow

KEPT_S = 900.0
"""How long after a first try its repetition gets the same job."""
FORGOTTEN_AT_ONCE = 1000
"""The number of first tries that one transaction forgets."""
_PREFIX = "first try "  # no client's key has a space


class FirstTry(NamedTuple):
    """A request whose client sends no key. ``key``: under which it submits; ``number``: how often it came before."""

    key: str
    number: int


def new_key() -> str:
    """Return a key for a request that is no repetition."""
    return _PREFIX + secrets.token_hex(16)


def key_of_try(tx: Connection, tenant: str, request: str, number: int, key: str) -> str:
    """Return the idempotency key for a request that is sent for the first time (``number`` 0), or again.

    It is that of the first try, or else ``key``, which is new. ``request``: its digest, 71 characters.
    """
    for skips_locked in (True, False) if number else ():  # one that is locked is taken, or found to be lost
        found = tx.execute(_first_try(tenant, request, number, skips_locked=skips_locked)).scalar()
        if found is not None:
            keep_try(tx, str(found), number)
            return str(found)
    row = {"tenant": tenant, "request": request, "at": now(), "tries": number, "is_lost": False}
    insert_unless_there(tx, FirstTryRow, key=key, **row)
    return key


def _first_try(tenant: str, request: str, number: int, *, skips_locked: bool) -> Select[str]:
    row = FirstTryRow
    return (
        select(row.key)
        .where(row.request == request, row.tenant == tenant, row.at > now() - KEPT_S, row.tries < number)
        .order_by(row.is_lost.desc(), row.at.desc())
        .limit(1)
        .with_for_update(skip_locked=skips_locked)
    )


def keep_try(tx: Connection, key: str, number: int) -> None:
    """Note that the repetition ``number`` has this key."""
    tx.execute(update(FirstTryRow).where(FirstTryRow.key == key).values(tries=number, is_lost=False))


def lose_try(tx: Connection, first_try: FirstTry) -> None:
    """Note that the client of a request got no answer, or an error, so that it may well come again."""
    tx.execute(update(FirstTryRow).where(*_is(first_try)).values(is_lost=True))


def end_try(tx: Connection, first_try: FirstTry) -> None:
    """Forget a request whose client has its answer, unless a later repetition has its key."""
    tx.execute(delete(FirstTryRow).where(*_is(first_try)))


def _is(first_try: FirstTry) -> tuple[ColumnElement[bool], ...]:
    return FirstTryRow.key == first_try.key, FirstTryRow.tries == first_try.number


def forget_tries(tx: Connection) -> bool:
    """Forget first tries that are too old. Return whether there may be others."""
    row = FirstTryRow
    old = select(row.key).where(row.at <= now() - KEPT_S).order_by(row.at).limit(FORGOTTEN_AT_ONCE)
    keys = sorted(tx.execute(old).scalars())
    if keys:
        tx.execute(delete(row).where(row.key.in_(keys)))
    return len(keys) == FORGOTTEN_AT_ONCE
