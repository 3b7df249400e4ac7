"""Lines with fields: several may share one record, because a transaction may change hundreds of stage runs."""

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A log line: what happened, and to what. The fields are names and values that are clean already."""

    message: str
    names: tuple[str, ...]
    values: tuple[Any, ...]  # one for each name


def texts_of(lines: Sequence[Line]) -> list[str]:
    """Return the lines as text. A value that is no word is a JSON string, so that none looks like a field or a line."""
    fields = [_form(names) % values for _, names, values in lines]
    # Nearly all values are words, and they are many: a look at all at once is cheaper than one at each.
    if not _are_words(" ".join(fields), sum(len(names) for _, names, _ in lines)):
        fields = [_form(names) % tuple(map(_as_word, values)) for _, names, values in lines]
    return [f"{line[0]}  {each}" for line, each in zip(lines, fields, strict=True)]


def _are_words(fields: str, count: int) -> bool:
    """Return whether so many fields, with a space between two, have a word for a value each."""
    return fields.count(" ") < count and fields.count("=") == count and '"' not in fields and fields.isprintable()


@lru_cache(maxsize=256)
def _form(names: tuple[str, ...]) -> str:
    return " ".join(f"{name}=%s" for name in names)


def _as_word(value: object) -> str:
    text = str(value)
    is_word = text.isprintable() and not any(each in text for each in ' ="')
    return text if is_word else json.dumps(text, ensure_ascii=False)


class _Joined:
    """The text of a record with lines, for a formatter that is not ours. Ours never make it."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __str__(self) -> str:
        return "\n".join(texts_of(self._lines))


def log_lines(logger: logging.Logger, level: int, lines: Sequence[Line]) -> None:
    """Write the lines, each as one, in a single record: a formatter of ours takes ``lines`` apart again."""
    if lines and logger.isEnabledFor(level):
        logger.log(level, "%s", _Joined(lines), extra={"lines": lines})
