"""What a command prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["show", "watching"]


def show(what: str | RenderableType) -> None:
    """Print a text, or a table as wide as the terminal."""
    if isinstance(what, str):
        typer.echo(what)
    else:
        _console().print(what)


def watching(look: Callable[[], RenderableType]) -> None:
    """Show what ``look`` gives, anew every second, until Ctrl-C."""
    from rich.live import Live

    with Live(look(), console=_console(), auto_refresh=False) as live:
        while True:
            time.sleep(1.0)
            live.update(look(), refresh=True)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    # A pipe has no width: lines must not be folded at 80 for it.
    return console if console.is_terminal else Console(width=200)
