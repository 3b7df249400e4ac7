"""The command ``top``: what the server does, as a person watches it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect
from omni_jobs.cli.exits import raised_signals
from omni_jobs.cli.screen import show
from omni_jobs.cli.terminal import console, say_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from omni_jobs.client import Client

_REDRAW_S = 0.5  # also where the server is asked less often: the terminal's size may change
_QUIT = frozenset(b"qQ\x04")  # Ctrl-D


def top(
    part: options.TopPartArgument = None,
    once: options.OnceOption = False,
    every: options.EveryOption = 1.0,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show stages, workers and the newest jobs, anew every second until q or Ctrl-C; or one of the three alone.

    While the server does not answer, the last that it said stays, marked as old. A file or a pipe gets one screen,
    as with --once. With --json each is what GET /v1/status answers, on one line.

    \b
    Examples:
      omni-jobs top
      omni-jobs top workers --every 5
      omni-jobs top --once --json
    """
    from omni_jobs.cli.top_screen import TopScreen

    parts = tuple(options.TopPart) if part is None else (part,)
    screen = console()
    with connect(url) as client:
        if as_json:
            _print(client, None if once else every)
        elif once or not screen.is_terminal:
            show(client.status(), False, lambda status: TopScreen(status, parts))
        else:
            _show_until_quit(client, every, screen, parts)


def _print(client: Client, every: float | None) -> None:
    """Print a line of JSON every so many seconds; once, if None."""
    while True:
        say_json(client.status().model_dump_json())
        sys.stdout.flush()
        if every is None:
            return
        time.sleep(every)


def _show_until_quit(client: Client, every: float, screen: Console, parts: Sequence[options.TopPart]) -> None:
    """Fill the terminal with the status, anew every so many seconds, until q, a signal or a final error."""
    from rich.live import Live

    from omni_jobs.cli.status_feed import StatusFeed
    from omni_jobs.cli.top_screen import TopScreen
    from omni_jobs.cli.typed_keys import typed_keys

    feed = StatusFeed(client, every)
    # Any signal has to bring back what the terminal showed before, and its cursor.
    with raised_signals(), typed_keys() as typed_within, Live(console=screen, screen=True, auto_refresh=False) as live:
        typed = b""
        while _QUIT.isdisjoint(typed):
            status, stale = feed.look()
            live.update(TopScreen(status, parts, screen.height, stale), refresh=True)
            typed = typed_within(min(every, _REDRAW_S))
