"""Durations, sizes and a model's text, as a terminal shows them."""


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
    """Return a model's text with � for unprintable characters but newlines, because they could move the cursor."""
    return "".join(character if character.isprintable() or character == "\n" else "�" for character in text)
