"""The forms of a line: JSON, or text as the process has always written it.

No library writes the JSON. What one would add to ``orjson.dumps`` is to take over whatever a library hangs onto its
records, and just that must not be, because no filter knows it.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import orjson

from omni_jobs.logs.context import RunNames
from omni_jobs.logs.records import Line, texts_of


class JsonFormat(logging.Formatter):
    """Writes each line as one JSON object: ``time`` (UTC), ``level``, ``process``, ``logger``, ``message``, fields."""

    def __init__(self, process: str = "") -> None:
        """``process`` is the name of the process, such as ``api``, for all its lines."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        lines: Sequence[Line] | None = getattr(record, "lines", None)
        known = self._known(record)
        if lines is None:
            return _json({**known, "message": record.getMessage(), **_of_run(record), **self._traceback(record)})
        return "\n".join(
            _json({**known, "message": message, **dict(zip(names, values, strict=True))})
            for message, names, values in lines
        )

    def _known(self, record: logging.LogRecord) -> dict[str, Any]:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        request = getattr(record, "request_id", "-")
        return {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            **({} if request == "-" else {"request": request}),
        }

    def _traceback(self, record: logging.LogRecord) -> dict[str, str]:
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return {"traceback": record.exc_text} if record.exc_text else {}


def _of_run(record: logging.LogRecord) -> dict[str, Any]:
    run: RunNames | None = getattr(record, "run", None)
    return {} if run is None else {name: value for name, value in run._asdict().items() if value is not None}


def _json(line: dict[str, Any]) -> str:
    return orjson.dumps(line, default=str).decode()


class TextFormat(logging.Formatter):
    """Writes lines as text, by another formatter; each of a record's lines as a line of its own.

    Further lines of a message or a traceback are indented: what a stranger wrote cannot look like a line of its own.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        lines: Sequence[Line] | None = getattr(record, "lines", None)
        if lines is None:
            return self._formatter.format(record).replace("\n", "\n    ")
        own = record.msg, record.args
        record.msg, record.args = _PLACE, ()
        before, _, behind = self._formatter.format(record).partition(_PLACE)  # once, because there may be hundreds
        record.msg, record.args = own
        return "\n".join([f"{before}{text}{behind}" for text in texts_of(lines)])


_PLACE = "\0"  # where the line's own text stands
