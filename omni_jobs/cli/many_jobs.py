"""What cancel, retry, advance and delete do with ``--filter``: count the jobs that match, ask, and act on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from omni_jobs.cli.exits import exit_code, fail, notice
from omni_jobs.cli.screen import show
from omni_jobs.errors import OmniJobsError

if TYPE_CHECKING:
    from omni_jobs.views import JobActionView

_NAMES: Final = ("status", "pipeline", "stage", "error_code", "created_after", "created_before", "tenant")
ActionCall = Callable[..., "JobActionView"]
"""A method of the client: takes a filter, ``cursor`` and ``dry_run``."""


def check_target(of_ids: object, filters: Sequence[str] | None, dry_run: bool, wait: bool = False) -> None:
    """Raise BadParameter unless a command has either ids or a filter.

    ``--dry-run`` is for a filter alone, ``--wait`` for one job.
    """
    if bool(of_ids) == bool(filters):
        raise typer.BadParameter("name a job, or give --filter, and not both", param_hint="JOB")
    if dry_run and not filters:
        raise typer.BadParameter("counts the jobs of a --filter", param_hint="--dry-run")
    if wait and filters:
        raise typer.BadParameter("waits for one job, not for those of a --filter", param_hint="--wait")


def pairs(given: Sequence[str], hint: str) -> dict[str, str]:
    """Return texts NAME=VALUE by name. Raises BadParameter, also for a name that comes twice."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"must be NAME=VALUE, not {each!r}", param_hint=hint)
        if name in found:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=hint)
        found[name] = value
    return found


def filter_of(given: Sequence[str]) -> dict[str, Any]:
    """Return the filter that the options ``--filter`` say. Raises BadParameter."""
    of_metadata = [each.removeprefix("metadata=") for each in given if each.startswith("metadata=")]
    found: dict[str, Any] = {}
    for name, value in pairs([each for each in given if not each.startswith("metadata=")], "--filter").items():
        if name not in _NAMES:
            raise typer.BadParameter(
                f"no filter {name!r}; there are: {', '.join(_NAMES)}, metadata", param_hint="--filter"
            )
        found[name] = value
    metadata = pairs(of_metadata, "--filter metadata")
    return {**found, "metadata": metadata} if metadata else found


def act_on_many(
    action: ActionCall, verb: str, filters: Sequence[str], *, dry_run: bool, is_sure: bool, as_json: bool
) -> None:
    """Do an action to all jobs that match. Ask first unless ``is_sure``; with ``dry_run`` count them alone.

    ``verb`` names it in the question, such as "cancel". Fails if it was stopped before the last job.
    """
    wanted = filter_of(filters)
    if dry_run or not is_sure:
        counted = _summed(action, wanted, dry_run=True)
        if dry_run:
            show(counted, as_json, lambda found: f"{found.matched} jobs match")
            return
        if counted.matched == 0:
            notice("no job matches")
            return
        typer.confirm(f"{verb} {counted.matched} jobs?", abort=True, err=True)
    done = _summed(action, wanted, dry_run=False)
    for skipped in done.skipped:
        notice(f"{skipped.count} left as they are ({skipped.code}), such as {skipped.job_id}: {skipped.message}")
    show(done, as_json, lambda found: f"{verb}: {found.changed} of {found.matched} jobs")
    if done.stopped_by is not None:
        error = OmniJobsError.from_dict(done.stopped_by.model_dump())
        fail(f"stopped: {error}", exit_code(error))


def _summed(action: ActionCall, wanted: Mapping[str, Any], *, dry_run: bool) -> JobActionView:
    """Call an action until no further job matches or it is stopped, and return the sum of its answers."""
    answer = total = action(wanted, dry_run=dry_run)
    while answer.next_cursor is not None and answer.stopped_by is None:
        answer = action(wanted, dry_run=dry_run, cursor=answer.next_cursor)
        skipped = {each.code: each for each in total.skipped}
        for each in answer.skipped:
            known = skipped.get(each.code)
            count = each.count + (0 if known is None else known.count)
            skipped[each.code] = (known or each).model_copy(update={"count": count})
        total = answer.model_copy(
            update={
                "matched": total.matched + answer.matched,
                "changed": total.changed + answer.changed,
                "skipped": list(skipped.values()),
            }
        )
    return total
