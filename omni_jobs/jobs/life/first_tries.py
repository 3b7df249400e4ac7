"""First tries: a client that sends a request again, without a key, gets the job of its first try.

Before a request submits, its row says under which idempotency key. A repetition takes the key of such a row, so it
submits the same job, on any server, also while the first try is still being written. Several clients may send the same
request at once, and each repetition has to find a row of its own: a repetition with the number n takes a row that none
with this number has taken, first one whose client is known to have got no answer, then the newest. The row of a request
goes with its answer, so that a later request, which is none of its repetitions, does not find it.
"""

import secrets
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from sqlalchemy import Connection, Select, bindparam, delete, select, update

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_or
from omni_jobs.database.tables import FirstTryRow

KEPT_S = 900.0
"""How long after a first try its repetition gets the same job."""
FORGOTTEN_AT_ONCE = 1000
"""The number of first tries that one transaction forgets."""
_PREFIX = "first try "  # no client's key has a space
_IS_IT = (FirstTryRow.key == bindparam("its_key"), FirstTryRow.tries == bindparam("number"))
_LOSE = update(FirstTryRow).where(*_IS_IT).values(is_lost=True)
_END = delete(FirstTryRow).where(*_IS_IT)


class FirstTry(NamedTuple):
    """A request whose client sends no key.

    tenant   whose it is
    request  its digest, 71 characters
    number   how often it came before
    key      under which it submits
    """

    tenant: str
    request: str
    number: int
    key: str


def new_try(tenant: str, request: str, number: int) -> FirstTry:
    """Return a request that is no repetition of another one, with a key of its own."""
    return FirstTry(tenant, request, number, _PREFIX + secrets.token_hex(16))


def take_try(tx: Connection, tenant: str, request: str, number: int) -> FirstTry | None:
    """Return the request as the repetition of its first try, with the key of that; None: there is none to take."""
    for skips_locked in (True, False):  # one that is locked is taken, or found to be lost
        key = tx.execute(_free_key(tenant, request, number, skips_locked=skips_locked)).scalar()
        if key is not None:
            taken = FirstTry(tenant, request, number, key)
            keep_try(tx, taken)
            return taken
    return None


def _free_key(tenant: str, request: str, number: int, *, skips_locked: bool) -> Select[str]:
    row = FirstTryRow
    return (
        select(row.key)
        .where(row.request == request, row.tenant == tenant, row.at > now() - KEPT_S, row.tries < number)
        .order_by(row.is_lost.desc(), row.at.desc())
        .limit(1)
        .with_for_update(skip_locked=skips_locked)
    )


def keep_try(tx: Connection, taken: FirstTry) -> None:
    """Note that the repetition has this key."""
    tx.execute(update(FirstTryRow).where(FirstTryRow.key == taken.key).values(tries=taken.number, is_lost=False))


def begin_tries(tx: Connection, tries: Sequence[FirstTry]) -> None:
    """Write the rows of requests that are about to submit, and are no repetitions."""
    rows = [
        {"key": each.key, "tenant": each.tenant, "request": each.request, "tries": each.number}
        for each in sorted(tries, key=attrgetter("key"))
    ]
    if rows:
        insert = insert_or(tx, FirstTryRow).values(at=now(), is_lost=False)
        tx.execute(insert.on_conflict_do_nothing(), rows)


def lose_tries(tx: Connection, tries: Sequence[FirstTry]) -> None:
    """Note that the clients of requests got no answer, or an error, so that they may well come again."""
    if tries:
        tx.execute(_LOSE, _named(tries))


def end_tries(tx: Connection, tries: Sequence[FirstTry]) -> None:
    """Forget requests whose clients have their answers, unless a later repetition has the key."""
    if tries:
        tx.execute(_END, _named(tries))


def _named(tries: Sequence[FirstTry]) -> list[dict[str, str | int]]:
    """Return the parameters of _IS_IT, in the order of keys, so that two transactions do not wait for each other."""
    return [{"its_key": each.key, "number": each.number} for each in sorted(tries, key=attrgetter("key"))]


def forget_tries(tx: Connection) -> bool:
    """Forget first tries that are too old. Return whether there may be others."""
    row = FirstTryRow
    old = select(row.key).where(row.at <= now() - KEPT_S).order_by(row.at).limit(FORGOTTEN_AT_ONCE)
    keys = sorted(tx.execute(old).scalars())
    if keys:
        tx.execute(delete(row).where(row.key.in_(keys)))
    return len(keys) == FORGOTTEN_AT_ONCE
