"""``ApiKeys``: the API keys in SQL, which knows a key by its digest alone."""

import hashlib
import logging
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, bindparam, insert, or_, select, update

from omni_jobs.database.audit import COMMAND, Act
from omni_jobs.database.clock import now
from omni_jobs.database.database import Database
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import ApiKeyRow, TenantRow
from omni_jobs.errors import DatabaseUnavailable, InvalidRequest, NotFound
from omni_jobs.logs.secrets import API_KEY
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.tenants.tenant_limits import Limits

logger = logging.getLogger(__name__)

_HINT_CHARACTERS = 9  # "omni_" and four more: 24 of the 256 random bits
_HOUR_S = 3600
_LONGEST_LIFE_S = 10 * 365 * 86_400.0


class ApiKeyView(BaseModel):
    """An API key, as ``omni-jobs keys list --json`` shows it, made of its row. The key itself nobody can show."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    id: str
    tenant: str
    name: str | None
    scopes: list[str]
    hint: str  # the key's first characters
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None  # to the hour


class NewApiKey(ApiKeyView):
    """An API key that was made just now, with the key itself, which is shown this once."""

    key: str


def digest_of(key: str) -> str | None:
    """Return the digest by which SQL knows a key; None for a text that is no key."""
    return hashlib.sha256(key.encode()).hexdigest() if API_KEY.fullmatch(key) else None


def caller_of(row: Any) -> Caller:
    """Return the caller that has a key, from its ``id``, ``tenant`` and ``scopes`` and the tenant's ``limits``."""
    # A scope of a later build counts for nothing here.
    scopes = frozenset(scope for scope in Scope if scope.value in row.scopes)
    limits = Limits.model_validate(row.limits)
    return Caller(row.tenant, scopes, limits, operates=Scope.ADMIN in scopes, actor=row.id)


class ApiKeys:
    """Makes, finds and revokes API keys. Every method may raise DatabaseUnavailable."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def create(
        self,
        tenant: str,
        scopes: Collection[str],
        *,
        name: str | None = None,
        expires_in_s: float | None = None,
        by: str = COMMAND,
    ) -> NewApiKey:
        """Make a key of a tenant, and return it; nothing can show it again.

        ``by``, here and below, is the actor whom the audit is to name (``omni_jobs.database.audit.Act``).
        Raises NotFound for an unknown tenant, and InvalidRequest naming a wrong scope, name or life.
        """
        known = [scope.value for scope in Scope]
        if not scopes or not set(scopes) <= set(known):
            raise InvalidRequest(f"must be some of {', '.join(known)}", field="scopes")
        if name is not None and not (1 <= len(name) <= 100 and name.isprintable()):
            raise InvalidRequest("must be 1 to 100 printable characters", field="name")
        if expires_in_s is not None and not 0 < expires_in_s <= _LONGEST_LIFE_S:
            raise InvalidRequest("must be more than nothing and at most ten years", field="expires_in")
        key = f"omni_{secrets.token_urlsafe(32)}"
        values = {
            "id": f"key-{secrets.token_hex(8)}",
            "tenant": tenant,
            "name": name,
            "scopes": [scope for scope in known if scope in scopes],
            "hint": key[:_HINT_CHARACTERS],
            "digest": digest_of(key),
        }
        act = Act(by, "create_key")
        view = self._db.run(lambda tx: _create(tx, values, expires_in_s, act))
        return NewApiKey(**view.model_dump(), key=key)

    def all(self, tenant: str | None = None) -> Sequence[ApiKeyView]:
        """Return all keys, or those of a tenant, the oldest first; revoked and expired ones too."""
        query = _KEYS.order_by(ApiKeyRow.created_at, ApiKeyRow.id)
        if tenant is not None:
            query = query.where(ApiKeyRow.tenant == tenant)
        return self._db.read(lambda tx: [ApiKeyView.model_validate(row) for row in tx.execute(query)])

    def expiring(self, within_s: float, tenant: str | None = None, *, at_most: int) -> Sequence[ApiKeyView]:
        """Return keys that count now and expire within so many seconds, the first to expire first; or a tenant's."""
        query = _KEYS.where(*KEY_COUNTS, ApiKeyRow.expires_at < now() + within_s).order_by(ApiKeyRow.expires_at)
        if tenant is not None:
            query = query.where(ApiKeyRow.tenant == tenant)
        return self._db.read(lambda tx: [ApiKeyView.model_validate(row) for row in tx.execute(query.limit(at_most))])

    def revoke(self, key_id: str, *, by: str = COMMAND) -> ApiKeyView:
        """Revoke a key, and return it. Every API server refuses it within 5 s. Raises NotFound."""
        act = Act(by, "revoke_key")
        return self._db.run(lambda tx: _revoke(tx, key_id, act))

    def caller(self, key_id: str) -> Caller | None:
        """Return the caller that has a key, by the key's id; None for one that is unknown, revoked or expired."""
        row = self._db.read(lambda tx: tx.execute(_BY_ID, {"key_id": key_id}).one_or_none())
        return None if row is None else caller_of(row)

    def find_all(self, digests: Sequence[str]) -> dict[str, tuple[Caller, float]]:
        """Return the callers that present these keys, by digest, each with for how many seconds its key lives on.

        Keys that are unknown, revoked or expired, by the database's clock, are left out.
        """
        rows = self._db.read(lambda tx: tx.execute(_FOUND, {"digests": listed(digests)}).all())
        return {row.digest: self._presented(row) for row in rows}

    def _presented(self, row: Any) -> tuple[Caller, float]:
        if row.used_at is None or row.used_at < row.at - row.at % _HOUR_S:
            self._note_use(row.id, row.at - row.at % _HOUR_S)
        return caller_of(row), float("inf") if row.expires_at is None else row.expires_at - row.at

    def _note_use(self, key_id: str, hour: float) -> None:
        note = update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(used_at=hour)
        try:
            self._db.run(lambda tx: tx.execute(note))
        except DatabaseUnavailable as error:
            logger.warning("the use of a key is not noted: %s", error)  # the next hour will


KEY_COUNTS = (
    ApiKeyRow.revoked_at.is_(None),
    or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > now()),
)
"""The SQL conditions that a key is neither revoked nor expired."""

_KEYS = select(*(getattr(ApiKeyRow, name) for name in ApiKeyView.model_fields))
# Built once, because SQLAlchemy would visit every part of it with every call.
_FOUND = (
    select(
        ApiKeyRow.id,
        ApiKeyRow.digest,
        ApiKeyRow.tenant,
        ApiKeyRow.scopes,
        ApiKeyRow.expires_at,
        ApiKeyRow.used_at,
        TenantRow.limits,
        now().label("at"),
    )
    .join(TenantRow, TenantRow.name == ApiKeyRow.tenant)
    .where(one_of(ApiKeyRow.digest, bindparam("digests")), *KEY_COUNTS)
)
_BY_ID = (
    select(ApiKeyRow.id, ApiKeyRow.tenant, ApiKeyRow.scopes, TenantRow.limits)
    .join(TenantRow, TenantRow.name == ApiKeyRow.tenant)
    .where(ApiKeyRow.id == bindparam("key_id"), *KEY_COUNTS)
)


def _create(tx: Connection, values: dict[str, Any], expires_in_s: float | None, act: Act) -> ApiKeyView:
    tenant = select(TenantRow.name).where(TenantRow.name == values["tenant"]).with_for_update(key_share=True)
    if tx.execute(tenant).one_or_none() is None:
        message = f"there is no tenant {values['tenant']!r:.80}: omni-jobs tenants create makes it"
        raise NotFound(message, field="tenant")
    is_ours = ApiKeyRow.id == values["id"]
    if tx.execute(select(ApiKeyRow.id).where(is_ours)).one_or_none() is None:  # else an earlier try wrote it
        expires_at = None if expires_in_s is None else now() + expires_in_s
        tx.execute(insert(ApiKeyRow).values(**values, created_at=now(), expires_at=expires_at))
        act.note(tx, values["id"], values["tenant"], name=values["name"], scopes=values["scopes"])
    return ApiKeyView.model_validate(tx.execute(_KEYS.where(is_ours)).one())


def _revoke(tx: Connection, key_id: str, act: Act) -> ApiKeyView:
    is_it = ApiKeyRow.id == key_id
    revoked = update(ApiKeyRow).where(is_it, ApiKeyRow.revoked_at.is_(None)).values(revoked_at=now())
    is_new = tx.execute(revoked).rowcount > 0
    row = tx.execute(_KEYS.where(is_it)).one_or_none()
    if row is None:
        raise NotFound(f"there is no key {key_id!r:.80}", field="id")
    if is_new:
        act.note(tx, key_id, row.tenant, name=row.name)
    return ApiKeyView.model_validate(row)
