"""``Tenants``: the tenants that operators have made, in SQL. Several operators may change them at once."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from omni_jobs.database.audit import COMMAND, Act
from omni_jobs.database.clock import now
from omni_jobs.database.database import Database
from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import listed
from omni_jobs.database.tables import ApiKeyRow, JobRow, TenantRow, TurnRow
from omni_jobs.errors import Conflict, NotFound
from omni_jobs.states import JobState
from omni_jobs.tenants.tenant_limits import Limits, check_limits, check_name, check_weight


class TenantView(BaseModel):
    """A tenant, as ``omni-jobs tenants list --json`` shows it, made of its row."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    name: str
    weight: float
    limits: Limits
    created_at: datetime


class Tenants:
    """Makes, changes and deletes tenants. Every method may raise DatabaseUnavailable."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def create(
        self, name: str, weight: float = 1.0, limits: Mapping[str, int] | None = None, *, by: str = COMMAND
    ) -> TenantView:
        """Make a tenant, and return it. Raises InvalidRequest naming the field, and Conflict if there is one.

        ``by``, here and below, is the actor whom the audit is to name (``omni_jobs.database.audit.Act``).
        """
        check_name(name)
        check_weight(weight)
        checked = check_limits(limits or {})
        act = Act(by, "create_tenant")
        return self._db.run(lambda tx: _create(tx, name, weight, checked, act))

    def all(self) -> Sequence[TenantView]:
        """Return all tenants, sorted by name."""
        query = _TENANTS.order_by(TenantRow.name)
        return self._db.read(lambda tx: [TenantView.model_validate(row) for row in tx.execute(query)])

    def limits_of(self, names: Sequence[str]) -> dict[str, Limits]:
        """Return tenants' limits by name; names that no tenant has are left out."""
        rows = self._db.read(lambda tx: tx.execute(_LIMITS, {"names": listed(names)}).all())
        return {row.name: Limits.model_validate(row.limits) for row in rows}

    def set(
        self,
        name: str,
        weight: float | None = None,
        limits: Mapping[str, int | None] | None = None,
        *,
        by: str = COMMAND,
    ) -> TenantView:
        """Change what is given of a tenant, and return it. A limit of None goes. API servers know within 5 s.

        Limits that are not given stay, also where another operator sets them at the same time. Raises NotFound, and
        InvalidRequest naming the field.
        """
        if weight is not None:
            check_weight(weight)
        given = dict(limits or {})
        check_limits({limit: number for limit, number in given.items() if number is not None})
        act = Act(by, "set_tenant")
        return self._db.run(lambda tx: _set(tx, name, weight, given, act))

    def delete(self, name: str, *, by: str = COMMAND) -> None:
        """Delete a tenant with its keys. Raises NotFound, and Conflict while it has unfinished jobs.

        Its ended jobs stay until they are pruned.
        """
        act = Act(by, "delete_tenant")
        self._db.run(lambda tx: _delete(tx, name, act))


_TENANTS = select(TenantRow.name, TenantRow.weight, TenantRow.limits, TenantRow.created_at)
_LIMITS = select(TenantRow.name, TenantRow.limits).where(one_of(TenantRow.name, bindparam("names")))


def _create(tx: Connection, name: str, weight: float, limits: Limits, act: Act) -> TenantView:
    insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    values = {"name": name, "weight": weight, "limits": limits.model_dump(exclude_none=True), "created_at": now()}
    made = insert(TenantRow).values(values).on_conflict_do_nothing().returning(TenantRow.name)
    if tx.execute(made).one_or_none() is None:
        raise Conflict(f"there is a tenant {name} already", field="name")
    act.note(tx, name, name, weight=weight, limits=limits.model_dump(exclude_none=True))
    return _get(tx, name)


def _set(tx: Connection, name: str, weight: float | None, limits: Mapping[str, int | None], act: Act) -> TenantView:
    before = _get(tx, name)
    kept = before.limits.model_dump() | dict(limits)
    values = {
        "weight": before.weight if weight is None else weight,
        "limits": {limit: number for limit, number in kept.items() if number is not None},
    }
    tx.execute(update(TenantRow).where(TenantRow.name == name).values(values))
    act.note(tx, name, name, **values)
    return _get(tx, name)


def _delete(tx: Connection, name: str, act: Act) -> None:
    # Waits for submits that go on, which hold these rows; later ones wait, and then find no tenant.
    tx.execute(select(TurnRow.pipeline).where(TurnRow.tenant == name).order_by(TurnRow.pipeline).with_for_update())
    _get(tx, name)
    # By their states, because an index has them.
    is_unfinished = (JobRow.state.in_([state.value for state in JobState if not state.is_final]), JobRow.tenant == name)
    jobs = tx.execute(select(func.count()).select_from(JobRow).where(*is_unfinished)).scalar_one()
    if jobs:
        raise Conflict(f"tenant {name} has {jobs} unfinished jobs: wait for them, or cancel them", field="name")
    tx.execute(delete(ApiKeyRow).where(ApiKeyRow.tenant == name))
    tx.execute(delete(TenantRow).where(TenantRow.name == name))
    act.note(tx, name, name)


def _get(tx: Connection, name: str) -> TenantView:
    """Return a tenant, and lock its row until the transaction ends. Raises NotFound."""
    row = tx.execute(_TENANTS.where(TenantRow.name == name).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"there is no tenant {name!r:.80}", field="name")
    return TenantView.model_validate(row)
