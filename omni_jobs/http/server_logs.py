"""How an API server writes its log lines: as uvicorn does, with the id of the request in brackets, or as JSON."""

import copy
import logging
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
    config["filters"] = {"lines": {"()": LineFilter}}
    for handler in config["handlers"].values():
        handler["filters"] = ["lines"]
    return config


def server_lines(name: str = "default") -> logging.Formatter:
    """Return uvicorn's formatter of this name, ``default`` or ``access``, with the id of the request in brackets."""
    given = LOGGING_CONFIG["formatters"][name]
    fmt = given["fmt"].replace("%(levelprefix)s", "%(levelprefix)s [%(request_id)s]")
    kind = AccessFormatter if name == "access" else DefaultFormatter
    return kind(fmt, use_colors=given.get("use_colors"))
