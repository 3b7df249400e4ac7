"""``Sessions``: browsers that signed in with an API key. SQL knows a session by its id's digest alone."""

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, case, delete, insert, literal, select

from omni_jobs.database.clock import now
from omni_jobs.database.database import Database
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import ApiKeyRow, SessionRow, TenantRow
from omni_jobs.errors import Unauthenticated
from omni_jobs.tenants.caller import Caller
from omni_jobs.tenants.key_store import KEY_COUNTS, caller_of

LONGEST_S: Final = 12 * 3600.0
MOST_OF_A_KEY: Final = 100  # one more ends the oldest

_ID = re.compile(r"[A-Za-z0-9_-]{43}")  # no API key fits


def session_digest(session_id: str) -> str | None:
    """Return the digest by which SQL knows a session; None for a text that is no session's id."""
    return hashlib.sha256(session_id.encode()).hexdigest() if _ID.fullmatch(session_id) else None


class Sessions:
    """Begins, finds and ends sessions. Every method may raise DatabaseUnavailable."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def begin(self, key_digest: str) -> str:
        """Begin a session with the key of this digest, and return its id: 32 random bytes, which nothing shows again.

        It ends with its key, and after ``LONGEST_S``. Raises Unauthenticated for a key that does not count.
        """
        session_id = secrets.token_urlsafe(32)
        if not self._db.run(lambda tx: _begin(tx, session_digest(session_id) or "", key_digest)):
            raise Unauthenticated
        return session_id

    def find_all(self, digests: Sequence[str]) -> dict[str, tuple[Caller, float]]:
        """Return the callers that have these sessions, by digest, each with for how many seconds its session lives on.

        A caller may do what its key may. Sessions that are unknown or ended, or whose key is revoked or expired, by the
        database's clock, are left out.
        """
        rows = self._db.read(lambda tx: tx.execute(_FOUND, {"digests": listed(digests)}).all())
        return {row.digest: (caller_of(row), row.ends_at - row.at) for row in rows}

    def end(self, digest: str) -> None:
        """End a session. Do nothing if there is none."""
        self._db.run(lambda tx: tx.execute(delete(SessionRow).where(SessionRow.digest == digest)))

    def prune(self) -> int:
        """Delete the sessions that have ended, and return their number."""
        return self._db.run(lambda tx: tx.execute(delete(SessionRow).where(SessionRow.ends_at <= now())).rowcount)


# Built once, because SQLAlchemy would visit every part of it with every call.
_FOUND = (
    select(
        SessionRow.digest,
        SessionRow.ends_at,
        ApiKeyRow.id,
        ApiKeyRow.tenant,
        ApiKeyRow.scopes,
        TenantRow.limits,
        now().label("at"),
    )
    .join(ApiKeyRow, ApiKeyRow.id == SessionRow.key_id)
    .join(TenantRow, TenantRow.name == ApiKeyRow.tenant)
    .where(one_of(SessionRow.digest, bindparam("digests")), SessionRow.ends_at > now(), *KEY_COUNTS)
)


def _begin(tx: Connection, digest: str, key_digest: str) -> bool:
    """Write a session's row, unless an earlier try did; return whether its key counts."""
    key = tx.execute(
        select(ApiKeyRow.id).where(ApiKeyRow.digest == key_digest, *KEY_COUNTS).with_for_update(key_share=True)
    ).scalar_one_or_none()
    if key is None:
        return False
    if tx.execute(select(SessionRow.digest).where(SessionRow.digest == digest)).one_or_none() is None:
        longest = now() + LONGEST_S
        ends_at = case((ApiKeyRow.expires_at < longest, ApiKeyRow.expires_at), else_=longest)
        columns = ["digest", "key_id", "created_at", "ends_at"]
        row = select(literal(digest), ApiKeyRow.id, now(), ends_at).where(ApiKeyRow.id == key)
        tx.execute(insert(SessionRow).from_select(columns, row))
    of_key = SessionRow.key_id == key
    newest = select(SessionRow.digest).where(of_key).order_by(SessionRow.created_at.desc()).limit(MOST_OF_A_KEY)
    tx.execute(delete(SessionRow).where(of_key, SessionRow.digest.not_in(newest)))
    return True
