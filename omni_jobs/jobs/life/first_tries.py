"""First tries: a client that sends a request again, without a key, gets the job of its first try.

Before a request submits, its row says under which idempotency key. A repetition takes the key of such a row, so it
submits the same job, on any server, also while the first try is still being written. Several clients may send the same
request at once, and each repetition has to find a row of its own: a repetition with the number n takes a row that none
with this number has taken, first one whose client is known to have got no answer, then the newest.
"""

import secrets

from sqlalchemy import Connection, delete, insert, select, update

from omni_jobs.database.clock import now
from omni_jobs.database.tables import FirstTryRow

KEPT_S = 900.0
"""How long after a first try its repetition gets the same job."""
FORGOTTEN_AT_ONCE = 1000
_PREFIX = "first try "  # no client's key has a space


def key_of_try(tx: Connection, tenant: str, request: str, number: int) -> str:
    """Return the idempotency key for a request that is sent for the first time (``number`` 0), or again.

    ``request``: its digest, 71 characters.
    """
    row = FirstTryRow
    if number:
        found = (
            select(row.key)
            .where(row.request == request, row.tenant == tenant, row.at > now() - KEPT_S, row.tries < number)
            .order_by(row.is_lost.desc(), row.at.desc())
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        key = tx.execute(found).scalar()
        if key is not None:
            tx.execute(update(row).where(row.key == key).values(tries=number, is_lost=False))
            return str(key)
    key = _PREFIX + secrets.token_hex(16)
    tx.execute(insert(row).values(key=key, tenant=tenant, request=request, at=now(), tries=number, is_lost=False))
    return key


def lose_try(tx: Connection, key: str) -> None:
    """Note that the client of this key's request got no answer, or an error, so that it may well come again."""
    tx.execute(update(FirstTryRow).where(FirstTryRow.key == key).values(is_lost=True))


def drop_try(tx: Connection, key: str) -> None:
    """Forget a request that was refused for what it is."""
    tx.execute(delete(FirstTryRow).where(FirstTryRow.key == key))


def forget_tries(tx: Connection) -> bool:
    """Forget first tries that are too old. Return whether there may be others."""
    row = FirstTryRow
    old = select(row.key).where(row.at <= now() - KEPT_S).order_by(row.at).limit(FORGOTTEN_AT_ONCE)
    keys = sorted(tx.execute(old).scalars())
    if keys:
        tx.execute(delete(row).where(row.key.in_(keys)))
    return len(keys) == FORGOTTEN_AT_ONCE
