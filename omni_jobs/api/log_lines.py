"""The log lines of an API server: uvicorn's and those of ``omni_jobs``, each with the id of its request."""

import copy
import logging
from typing import Any

from uvicorn.config import LOGGING_CONFIG

from omni_jobs.api.request_ids import current_request_id


class RequestIdFilter(logging.Filter):
    """Gives each log record the id of the request that it was logged for, as ``request_id``; "-" if there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current_request_id() or "-"
        return True


def log_config() -> dict[str, Any]:
    """Return uvicorn's configuration of logging, with the request's id in each line, and for ``omni_jobs`` too."""
    config = copy.deepcopy(LOGGING_CONFIG)
    for formatter in config["formatters"].values():
        formatter["fmt"] = formatter["fmt"].replace("%(levelprefix)s", "%(levelprefix)s [%(request_id)s]")
    config["filters"] = {"request_id": {"()": RequestIdFilter}}
    for handler in config["handlers"].values():
        handler["filters"] = ["request_id"]
    config["loggers"]["omni_jobs"] = {"handlers": ["default"]}
    return config
