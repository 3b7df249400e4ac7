"""The command that says what is wrong with an installation."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
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
    from omni_jobs.doctor import EXAMINATIONS
    from omni_jobs.stack.child import UMASK

    unknown = set(only or ()) - EXAMINATIONS.keys()
    if unknown:
        raise typer.BadParameter(f"{min(unknown)!r} is none of {', '.join(EXAMINATIONS)}", param_hint="--only")
    os.umask(UMASK)  # a directory of objects that it makes is as private as a server's
    found: list[Finding] = []
    for finding in _findings(only or tuple(EXAMINATIONS)):
        found.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        from omni_jobs.cli.screen import show_json

        show_json(found)
    if any(finding.state == "error" for finding in found):
        raise typer.Exit(Exit.FAILED)


def _findings(names: Collection[str]) -> Iterator[Finding]:
    """Yield what is found; of settings that no process would start with, that alone."""
    from omni_jobs.doctor import Finding, examine
    from omni_jobs.errors import ConfigError
    from omni_jobs.logs.secrets import know_secrets
    from omni_jobs.settings import read_settings

    try:
        settings = read_settings()
    except ConfigError as error:
        remedy = "correct the variable or its file (docs/settings.md), and run this again: nothing else was looked at"
        yield Finding(about="settings", state="error", message=str(error), remedy=remedy)
        return
    know_secrets(settings)
    yield from examine(settings, names)


def _show(finding: Finding) -> None:
    from rich.text import Text

    mark, colour = _MARKS[finding.state]
    console().print(Text.assemble((mark, colour), " ", (finding.about, "bold"), f"  {finding.message}"))
    if finding.remedy is not None:
        say(f"    {finding.remedy}")
