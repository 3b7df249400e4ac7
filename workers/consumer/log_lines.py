"""A worker's log lines: what strangers wrote steers no terminal that shows them.

A line may hold the words of a remote server, a plug-in's or an artifact's name. Whoever looks at a log does so on a
terminal, where escape sequences among these could do more than be seen.
"""

import logging
import re
import traceback
from typing import Any

_NOT_PLAIN = re.compile(r"[^\n\t -~]")


class PrintableLines(logging.Filter):
    """Shows each unprintable character of a record, and of its traceback, as �; newlines and tabs stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if (shown := _printable(text)) != text:
            record.msg, record.args = shown, ()
        if isinstance(record.exc_info, tuple) and record.exc_text is None:
            record.exc_text = _printable("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
        return True


def show_printable_lines(logger: logging.Logger, **_: Any) -> None:
    """Give a logger's handlers the filter. A receiver of Celery's signal ``after_setup_logger``."""
    for handler in logger.handlers:
        handler.addFilter(PrintableLines())


def _printable(text: str) -> str:
    return _NOT_PLAIN.sub(lambda found: found[0] if found[0].isprintable() else "�", text)
