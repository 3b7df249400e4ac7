"""The command that says what is wrong with an installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from omni_jobs.cli import options
from omni_jobs.cli.exits import Exit
from omni_jobs.cli.terminal import console, say

if TYPE_CHECKING:
    from omni_jobs.doctor import Finding

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def doctor(only: options.ExaminationsOption = None, as_json: options.JsonOption = False) -> None:
    """Examine this installation: services, schema, clocks, room, cards, checkpoints, versions; say what to do.

    It reads the same variables as the servers, so run it as they run: on each host, in each container. It exits with 1
    if something does not work, and warnings do not count.

    \b
    Examples:
      omni-jobs doctor
      omni-jobs doctor --only database --only broker
      omni-jobs doctor --json
    """
    from omni_jobs.doctor import EXAMINATIONS, examine
    from omni_jobs.logs.secrets import know_secrets
    from omni_jobs.settings import read_settings

    unknown = set(only or ()) - EXAMINATIONS.keys()
    if unknown:
        raise typer.BadParameter(f"{min(unknown)!r} is none of {', '.join(EXAMINATIONS)}", param_hint="--only")
    settings = read_settings()
    know_secrets(settings)
    found: list[Finding] = []
    for finding in examine(settings, only or tuple(EXAMINATIONS)):
        found.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        from omni_jobs.cli.screen import show_json

        show_json(found)
    if any(finding.state == "error" for finding in found):
        raise typer.Exit(Exit.FAILED)


def _show(finding: Finding) -> None:
    from rich.text import Text

    mark, colour = _MARKS[finding.state]
    console().print(Text.assemble((mark, colour), " ", (finding.about, "bold"), f"  {finding.message}"))
    if finding.remedy is not None:
        say(f"    {finding.remedy}")
