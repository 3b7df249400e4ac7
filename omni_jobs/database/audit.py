"""``Act``: what somebody does, noted in the audit by the transaction that does it."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import Connection

from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_unless_there
from omni_jobs.database.seen_tables import AuditRow

ActKind = Literal[
    "cancel",
    "retry",
    "advance",
    "delete",
    "fork",
    "begin_action",
    "stop_action",
    "pause",
    "resume",
    "drain",
    "undrain",
    "drain_version",
    "serve_version",
    "create_key",
    "revoke_key",
    "create_tenant",
    "set_tenant",
    "delete_tenant",
    "kill",
]

COMMAND: Final = "command"
"""The actor of a command on the database itself."""


@dataclass(frozen=True, slots=True)
class Act:
    """An action of somebody. Make it once, before its transaction, so that another try of that notes it once.

    actor  the id of the key with which it was asked for; ``proxy`` for a tenant whom a proxy names, ``anyone`` where
           nobody is told apart, ``command`` for a command on the database itself
    """

    actor: str
    action: ActKind
    id: str = field(default_factory=lambda: f"act-{time.time_ns():016x}{secrets.token_hex(8)}")

    def note(self, tx: Connection, target: str, tenant: str | None, **details: Any) -> None:
        """Write it to the audit, if that has changed something.

        ``target``: a job, an action on many, a stage, a worker's slot, a key, a tenant or a process of the embedded
        stack, by its id or name; of several jobs the first. ``tenant``: whose it is; None: nobody's, or several
        tenants'. ``details``: JSON values.
        """
        values = {"actor": self.actor, "action": self.action, "target": target, "tenant": tenant, "details": details}
        insert_unless_there(tx, AuditRow, id=self.id, at=now(), **values)


def act(actor: str | None, action: ActKind) -> Act | None:
    """Return an action of somebody; None where the system itself acts, which no audit notes."""
    return None if actor is None else Act(actor, action)
