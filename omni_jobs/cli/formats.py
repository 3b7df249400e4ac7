"""Durations, sizes and a model's text, as a terminal shows them."""

import json
import re

# Control characters of C0 and C1; what turns the order of letters around or hides; line separators; halves of pairs.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0001\U000e0020-\U000e007f]"
)


def duration_text(seconds: float | None) -> str:
    """Return a duration in words: ``0.4 s``, ``12 s`` or ``3 min 05 s``; an empty text for None."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)  # the clocks of two machines may differ
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def size_text(count: int | None) -> str:
    """Return a number of bytes in words: ``980 B``, ``12.3 kB`` or ``4.5 MB``; an empty text for None."""
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def printable(text: str) -> str:
    """Return a text as a terminal may get it, with � for each character that could do more there than be seen.

    Newlines, tabs and the joiners of scripts and emoji stay; a carriage return before a newline goes.
    """
    return _UNSAFE.sub("�", text.replace("\r\n", "\n"))


def printable_json(text: str) -> str:
    """Return the same JSON, with such characters escaped."""
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text)
