"""How a process writes its log lines, by the setting ``log``: ``OMNI_JOBS_LOG=json`` or ``text``."""

import logging
import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from omni_jobs.logs.formats import JsonFormat, TextFormat
from omni_jobs.logs.line_filter import LineFilter
from omni_jobs.logs.secrets import know_secrets
from omni_jobs.settings import Settings

_logger = logging.getLogger(__name__)

_TEXT = "[%(asctime)s: %(levelname)s/{process}] %(message)s"

VLLM_CONFIG: Final = Path(__file__).with_name("vllm.json")
"""vLLM's configuration of logging, for its ``VLLM_LOGGING_CONFIG_PATH``: its lines have our form and filter, too."""


def configure(form: Literal["json", "text"], process: str, text: logging.Formatter | None = None) -> None:
    """Write this process's lines on stderr, those of all libraries too; as text they look as ``text`` makes them.

    Python's warnings, and errors that nothing catches, become lines too: what it writes itself has no form, and nobody
    takes secrets out of it.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form, process, text or logging.Formatter(_TEXT.format(process=process))))
    handler.addFilter(LineFilter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for ours in ("omni_jobs", "workers"):
        logging.getLogger(ours).setLevel(logging.INFO)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_of_thread


def take_over(logger: logging.Logger, settings: Settings, process: str) -> None:
    """Give handlers that another program has made, such as Celery's, our form and filter."""
    know_secrets(settings)
    for handler in logger.handlers:
        handler.setFormatter(formatter(settings.log, process, handler.formatter or logging.Formatter()))
        handler.addFilter(LineFilter())


def formatter(form: Literal["json", "text"], process: str, text: logging.Formatter) -> logging.Formatter:
    """Return the formatter of a process's lines; as text they look as ``text`` makes them."""
    return JsonFormat(process) if form == "json" else TextFormat(text)


def engine_formatter() -> logging.Formatter:
    """Return the formatter of an engine's lines. Its process reads no settings, because they hold secrets."""
    form: Literal["json", "text"] = "json" if os.environ.get("OMNI_JOBS_LOG") == "json" else "text"
    return formatter(form, "engine", logging.Formatter(_TEXT.format(process="engine")))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        _logger.critical("the process ends by an error", exc_info=(kind, error, trace))


def _log_uncaught_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
        name = "" if args.thread is None else args.thread.name
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        _logger.critical("the thread %s ends by an error", name, exc_info=error)
