"""The commands that list the versions of pipelines, drain one and let it serve again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import typer

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect
from omni_jobs.cli.exits import notice
from omni_jobs.cli.screen import show
from omni_jobs.errors import Conflict

if TYPE_CHECKING:
    from omni_jobs.client import Client
    from omni_jobs.views import PipelineVersionView

_POLL_S: Final = 1.0


def versions(url: options.UrlOption = None, as_json: options.JsonOption = False) -> None:
    """List the versions of pipelines that servers and workers have had: which take new jobs, and what is left of each.

    For a key with the scope admin. A request that names no version means the one with the star.

    \b
    Examples:
      omni-jobs pipelines versions
      omni-jobs pipelines versions --json
    """
    from omni_jobs.cli.tables import versions_table

    with connect(url) as client:
        show(client.pipeline_versions(), as_json, versions_table)


def drain(
    version: options.VersionArgument,
    wait: options.NoneLeftOption = False,
    timeout: options.NoneLeftTimeoutOption = None,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Let a version of a pipeline take no new jobs. Its jobs go on, and once none is left, its workers may go.

    Requests without a version mean the newest version that is not draining. `pipelines serve` is the way back. With
    --wait the command returns once its workers may go, and tells on stderr what is left.

    The exit code is 0 if it drains and, with --wait, nothing is left; 1 if somebody lets it serve meanwhile, 4 if there
    is no such version, 5 if --timeout is over. After 5 and Ctrl-C it goes on draining.

    \b
    Examples:
      omni-jobs pipelines drain echo@1
      omni-jobs pipelines drain echo@1 --wait --timeout 3600
    """
    from omni_jobs.cli.tables import versions_table

    if timeout is not None and not wait:
        raise typer.BadParameter("it bounds --wait, which is not given", param_hint="--timeout")
    with connect(url) as client:
        drained = client.set_draining(version, True)
        if wait:
            drained = _wait_until_none_left(client, version, timeout)
    show(drained, as_json, lambda shown: versions_table([shown]))


def serve(version: options.VersionArgument, url: options.UrlOption = None, as_json: options.JsonOption = False) -> None:
    """Let a version of a pipeline that is draining take new jobs again.

    \b
    Example:
      omni-jobs pipelines serve echo@1
    """
    from omni_jobs.cli.tables import versions_table

    with connect(url) as client:
        show(client.set_draining(version, False), as_json, lambda shown: versions_table([shown]))


def _wait_until_none_left(client: Client, version: str, timeout: float | None) -> PipelineVersionView:
    """Return the version once its workers may go. Raises TimeoutError, and Conflict once it is to serve again."""
    began, told = time.monotonic(), ""
    while True:
        [found] = [each for each in client.pipeline_versions() if f"{each.pipeline}@{each.version}" == version]
        if found.state == "serving":
            raise Conflict(f"somebody lets {version} serve again", field="version")
        if found.workers_may_go:
            return found
        left = found.queued + found.in_progress + found.cancelling
        line = f"{left} jobs left" if left else "none left; waiting until every server knows that it is draining"
        if line != told:
            notice(f"{version}: {line}")
            told = line
        if timeout is not None and time.monotonic() - began >= timeout:
            raise TimeoutError(f"after {timeout:g} s {line}; {version} goes on draining")
        time.sleep(_POLL_S)
