"""The commands that list workers, and that drain and resume them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect
from omni_jobs.cli.exits import notice
from omni_jobs.cli.screen import show

if TYPE_CHECKING:
    from omni_jobs.views import WorkerDrainView


def list_(url: options.UrlOption = None, as_json: options.JsonOption = False) -> None:
    """List the workers that serve: which are drained, and what each has in flight. For a key with the scope admin.

    \b
    Examples:
      omni-jobs workers list
      omni-jobs workers list --json
    """
    from omni_jobs.cli.tables import workers_table

    with connect(url) as client:
        show(client.status().workers, as_json, workers_table)


def drain(
    worker: options.WorkerArgument = None,
    host: options.HostOfWorkersOption = None,
    wait: options.EmptyOption = False,
    timeout: options.EmptyTimeoutOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Drain a worker, or all workers of a host: they go on with what they run, and claim nothing more.

    Their models stay loaded; `workers resume` is the way back. With --wait the command returns once none of them runs a
    stage run, and tells on stderr what is left. A worker that begins to serve on the host meanwhile is drained, too.

    The exit code is 0 if they are drained and, with --wait, empty; 1 if somebody resumed one of them, 4 if there is no
    such worker or none serves on the host, 5 if --timeout is over. After 5 and Ctrl-C they stay drained.

    \b
    Examples:
      omni-jobs workers drain echo.first@gpu-a
      omni-jobs workers drain --host gpu-a --wait --timeout 3600
    """
    from omni_jobs.cli.emptied import set_drained_on, wait_until_empty

    named = _named(worker, host)
    if timeout is not None and not wait:
        raise typer.BadParameter("it bounds --wait, which is not given", param_hint="--timeout")
    with connect(url) as client:
        drains = set_drained_on(client, named, True) if host is not None else [client.set_drained(named, True)]
        if wait:
            drains = wait_until_empty(client, drains, host, timeout, notice)
    _show(drains, host, as_json, "empty" if wait else "drained")


def resume(
    worker: options.WorkerArgument = None,
    host: options.HostOfWorkersOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Let a worker that is drained claim again, or all workers of a host.

    \b
    Examples:
      omni-jobs workers resume echo.first@gpu-a
      omni-jobs workers resume --host gpu-a
    """
    from omni_jobs.cli.emptied import set_drained_on

    named = _named(worker, host)
    with connect(url) as client:
        drains = set_drained_on(client, named, False) if host is not None else [client.set_drained(named, False)]
    _show(drains, host, as_json, "not drained")


def _named(worker: str | None, host: str | None) -> str:
    """Return the worker or the host, of which one must be given."""
    named = worker if host is None else host
    if named is None or (worker is not None and host is not None):
        raise typer.BadParameter("name a worker, or a host by --host", param_hint="WORKER")
    return named


def _show(drains: Sequence[WorkerDrainView], host: str | None, as_json: bool, state: str) -> None:
    """Show workers that are in this state; those of a host as a list, one as itself."""
    lines = "\n".join(f"{worker.slot}: {state}" for worker in drains)
    show(drains if host is not None else drains[0], as_json, lambda _: lines)
