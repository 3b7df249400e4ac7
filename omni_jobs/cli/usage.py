"""The command ``usage``: what tenants have used, by day, tenant, pipeline and stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect
from omni_jobs.cli.screen import show

if TYPE_CHECKING:
    from rich.table import Table

    from omni_jobs.views import UsageReport

_GROUPS: Final = ("day", "tenant", "pipeline", "stage")
_AMOUNTS: Final = {
    "attempts": "attempts",
    "worker_s": "worker s",
    "device_s": "device s",
    "prompt_tokens": "tokens in",
    "completion_tokens": "tokens out",
    "heard_s": "s heard",
    "sound_s": "s of sound",
    "pictures": "pictures",
    "frames": "frames",
}


def usage(
    first_day: options.FirstDayOption = None,
    last_day: options.LastDayOption = None,
    by: options.ByOption = "pipeline,stage",
    pipeline: options.UsedPipelineOption = None,
    tenant: options.UsedTenantOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what was used: worker and device seconds, tokens, sound and pictures, also of jobs that are deleted.

    \b
    Examples:
      omni-jobs usage
      omni-jobs usage --from 2026-01-01 --to 2026-01-31 --by tenant,stage
      omni-jobs usage --by day --pipeline echo --json
    """
    names = by.split(",")
    if unknown := [name for name in names if name not in _GROUPS]:
        raise typer.BadParameter(f"no {unknown[0]!r}; there are: {', '.join(_GROUPS)}", param_hint="--by")
    with connect(url) as client:
        report = client.usage(first_day, last_day, by=names, pipeline=pipeline, tenant=tenant)
    show(report, as_json, lambda report: _table(report, [name for name in _GROUPS if name in names]))


def _table(report: UsageReport, names: list[str]) -> Table:
    """Return a line per row of the report, and one for their sum."""
    from omni_jobs.cli.tables import table_of

    shown = [name for name in _AMOUNTS if name == "attempts" or getattr(report.total, name)]
    table = table_of(*names)
    for name in shown:
        table.add_column(_AMOUNTS[name], justify="right")
    for row in report.rows:
        keys = [str(getattr(row, name) or "") for name in names]
        table.add_row(*keys, *(f"{getattr(row.usage, name):,.10g}" for name in shown))
    table.add_row("total", *[""] * (len(names) - 1), *(f"{getattr(report.total, name):,.10g}" for name in shown))
    return table
