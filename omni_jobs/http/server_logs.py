"""How an API server writes its log lines: as uvicorn does, with the id of the request in brackets, or as JSON."""

import copy
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.config import LOGGING_CONFIG
from uvicorn.logging import AccessFormatter, DefaultFormatter

from omni_jobs.logs.line_filter import LineFilter
from omni_jobs.logs.secrets import know_secrets
from omni_jobs.logs.setup import formatter
from omni_jobs.settings import Settings


def server_config(settings: Settings) -> dict[str, Any]:
    """Return uvicorn's configuration of logging, with our form and filter."""
    know_secrets(settings)
    config = copy.deepcopy(LOGGING_CONFIG)
    for name in config["formatters"]:
        config["formatters"][name] = {"()": lambda name=name: formatter(settings.log, "api", server_lines(name))}
    config["filters"] = {"lines": {"()": LineFilter}, "polls": {"()": _NoPolls, "prefix": settings.root_path}}
    for handler in config["handlers"].values():
        handler["filters"] = ["lines"]
    config["loggers"]["uvicorn.access"]["filters"] = ["polls"]
    return config


_FINE = range(HTTPStatus.BAD_REQUEST)


class _NoPolls(logging.Filter):
    """Leaves out the access lines of open pages that ask whether they have changed, unless the answer is an error.

    Fifty tabs would write 25 a second.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._path = f"{prefix}/fragments/"

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.args, tuple) or len(record.args) != 5:
            return True
        _, _, path, _, status = record.args
        return not (isinstance(path, str) and path.startswith(self._path) and status in _FINE)


def server_lines(name: str = "default") -> logging.Formatter:
    """Return uvicorn's formatter of this name, ``default`` or ``access``, with the id of the request in brackets."""
    given = LOGGING_CONFIG["formatters"][name]
    fmt = given["fmt"].replace("%(levelprefix)s", "%(levelprefix)s [%(request_id)s]")
    kind = AccessFormatter if name == "access" else DefaultFormatter
    return kind(fmt, use_colors=given.get("use_colors"))
