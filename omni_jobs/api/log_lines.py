"""The log lines of an API server: uvicorn's and those of ``omni_jobs``, each with its request's id and no API key."""

import copy
import logging
from typing import Any
from urllib.parse import quote, unquote

from uvicorn.config import LOGGING_CONFIG

from omni_jobs.api.request_ids import current_request_id
from omni_jobs.tenants.key_store import mask_keys


class RequestIdFilter(logging.Filter):
    """Gives each log record the id of the request that it was logged for, as ``request_id``; "-" if there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current_request_id() or "-"
        return True


class KeyFilter(logging.Filter):
    """Masks the API keys in each log record: somebody may have put one into a URL, also with escapes."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str):
            record.msg = mask_keys(record.msg)
        if isinstance(record.args, tuple):
            record.args = tuple(_masked(each) if isinstance(each, str) else each for each in record.args)
        return True


def _masked(text: str) -> str:
    plain = unquote(text) if "%" in text else text
    masked = mask_keys(plain)
    if masked == plain:
        return text
    return masked if plain == text else quote(masked, safe="/?&=…")


def log_config() -> dict[str, Any]:
    """Return uvicorn's configuration of logging, with the request's id in each line, and for ``omni_jobs`` too."""
    config = copy.deepcopy(LOGGING_CONFIG)
    for formatter in config["formatters"].values():
        formatter["fmt"] = formatter["fmt"].replace("%(levelprefix)s", "%(levelprefix)s [%(request_id)s]")
    config["filters"] = {"request_id": {"()": RequestIdFilter}, "keys": {"()": KeyFilter}}
    for handler in config["handlers"].values():
        handler["filters"] = ["request_id", "keys"]
    config["loggers"]["omni_jobs"] = {"handlers": ["default"]}
    return config
