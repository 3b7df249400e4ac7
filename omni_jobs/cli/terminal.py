"""The door to the terminal: everything that a command prints goes through ``say`` or the console of this module.

Names, texts and errors of a job are anybody's. On a terminal each character of theirs that could move the cursor,
reach the clipboard or turn the order of letters around is shown as �. A file or a pipe gets them as they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


# Control characters of C0 and C1; what turns the order of letters around or hides; line separators; halves of pairs.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0001\U000e0020-\U000e007f]"
)


def say(text: str, *, err: bool = False) -> None:
    """Print a line on stdout or, with ``err``, on stderr."""
    file = sys.stderr if err else sys.stdout
    file.write(f"{printable(text) if file.isatty() else text}\n")
    file.flush()


def say_json(text: str, file: TextIO | None = None) -> None:
    """Print a line of JSON on ``file``, or on stdout. A terminal gets the same JSON with more characters escaped."""
    file = file or sys.stdout
    file.write(f"{printable_json(text) if file.isatty() else text}\n")


def console(*, err: bool = False) -> Console:
    """Return a console for rich renderables, on stdout or stderr. Texts are no markup. A pipe gets lines unfolded."""
    width = None if (sys.stderr if err else sys.stdout).isatty() else _WIDTH_OF_A_PIPE
    return _console_class()(stderr=err, width=width, markup=False, emoji=False, highlight=False)


_WIDTH_OF_A_PIPE = 200  # rich would fold lines at 80 characters


@cache
def _console_class() -> type[Console]:
    """Return the class of the consoles. Loaded when needed, because rich takes a while."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Guarded(Console):
        """A console that shows unprintable characters as � on a terminal, in whatever renderable they stand."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if self.is_terminal and segment.control is None:
                    yield Segment(printable(segment.text), segment.style)
                else:
                    yield segment

    return Guarded


def printable(text: str) -> str:
    """Return a text as a terminal may get it, with � for each character that could do more there than be seen.

    Newlines, tabs and the joiners of scripts and emoji stay; a carriage return before a newline goes.
    """
    return _UNSAFE.sub("�", text.replace("\r\n", "\n"))


def printable_json(text: str) -> str:
    """Return the same JSON, with such characters escaped."""
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text)
