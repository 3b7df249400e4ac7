"""Lines with fields: several may share one record, because a transaction may change hundreds of stage runs."""

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A log line: what happened, and to what. The fields are names and values that are clean already.

    As text, a value of several words is a JSON string, so that none looks like a field or a line.
    """

    message: str
    names: tuple[str, ...]
    values: tuple[Any, ...]  # one for each name

    def __str__(self) -> str:
        text = _form(self.names) % self.values
        count = len(self.names)
        # Nearly all are plain, and they are many: a look at all values at once is cheaper than one at each.
        if text.count(" ") >= count or text.count("=") > count or '"' in text or not text.isprintable():
            text = _form(self.names) % tuple(map(_as_word, self.values))
        return f"{self.message}  {text}"


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
        return "\n".join(map(str, self._lines))


def log_lines(logger: logging.Logger, level: int, lines: Sequence[Line]) -> None:
    """Write the lines, each as one, in a single record: a formatter of ours takes ``lines`` apart again."""
    if lines and logger.isEnabledFor(level):
        logger.log(level, "%s", _Joined(lines), extra={"lines": lines})
