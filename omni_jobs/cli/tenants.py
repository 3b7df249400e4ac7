"""The commands for tenants: their weights and limits. They change the database itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from omni_jobs.cli import options
from omni_jobs.cli.screen import show
from omni_jobs.cli.servers import opened_database

if TYPE_CHECKING:
    from omni_jobs.tenants.tenant_store import TenantView


def create(
    name: options.TenantArgument,
    weight: options.WeightOption = None,
    limit: options.LimitsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Make a tenant. Without a limit the settings' limits hold.

    Limits: queued_jobs (waiting jobs of a pipeline), running_jobs, requests_per_minute, media_bytes (of unfinished
    jobs), stored_bytes (of all jobs that are kept). The weight, 0.001 to 1000, is the tenant's share beside the weights
    of the others.

    \b
    Examples:
      omni-jobs tenants create acme
      omni-jobs tenants create acme --weight 3 --limit queued_jobs=1000 --limit requests_per_minute=600
    """
    from omni_jobs.tenants.tenant_store import Tenants

    limits = {name: number for name, number in _limits(limit).items() if number is not None}
    with opened_database() as database:
        tenant = Tenants(database).create(name, 1.0 if weight is None else weight, limits)
    show(tenant, as_json, _settings)


def list_(as_json: options.JsonOption = False) -> None:
    """List the tenants, with their weights and limits. A tenant that only a proxy names is not listed.

    \b
    Example:
      omni-jobs tenants list --json
    """
    from omni_jobs.cli.tables import moment, table_of
    from omni_jobs.tenants.tenant_store import Tenants

    with opened_database() as database:
        tenants = Tenants(database).all()
    rows = ((each.name, f"{each.weight:g}", _limits_text(each), moment(each.created_at)) for each in tenants)
    show(tenants, as_json, lambda _: table_of("tenant", "weight", "limits", "created", rows=rows))


def set_(
    name: options.TenantArgument,
    weight: options.WeightOption = None,
    limit: options.LimitsOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Change a tenant's weight or limits. What is not named stays. API servers know new limits within 5 seconds.

    \b
    Examples:
      omni-jobs tenants set acme --weight 0.5
      omni-jobs tenants set acme --limit running_jobs=8 --limit media_bytes=none
    """
    from omni_jobs.tenants.tenant_store import Tenants

    with opened_database() as database:
        show(Tenants(database).set(name, weight, _limits(limit)), as_json, _settings)


def delete(name: options.TenantArgument) -> None:
    """Delete a tenant with its keys. Fails while it has unfinished jobs. Its ended jobs stay until they are pruned.

    \b
    Example:
      omni-jobs tenants delete acme
    """
    from omni_jobs.tenants.tenant_store import Tenants

    with opened_database() as database:
        Tenants(database).delete(name)


def _limits(given: list[str] | None) -> dict[str, int | None]:
    """Return limits by name from ``NAME=NUMBER`` and ``NAME=none``. Raises BadParameter."""
    limits: dict[str, int | None] = {}
    for text in given or ():
        name, _, number = text.partition("=")
        if number != "none" and not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise typer.BadParameter(f"not NAME=NUMBER, nor NAME=none: {text!r:.80}", param_hint="--limit")
        limits[name] = None if number == "none" else int(number)
    return limits


def _settings(tenant: TenantView) -> str:
    limits = _limits_text(tenant) or "those of the settings"
    return f"{tenant.name}: weight {tenant.weight:g}, limits: {limits}"


def _limits_text(tenant: TenantView) -> str:
    return ", ".join(f"{name}={number}" for name, number in tenant.limits.model_dump(exclude_none=True).items())
