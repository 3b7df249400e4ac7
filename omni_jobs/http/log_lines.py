"""The log lines of an API server: uvicorn's and those of ``omni_jobs``, each with its request's id and no API key."""

import copy
import logging
from typing import Any
from urllib.parse import quote, unquote

from uvicorn.config import LOGGING_CONFIG

from omni_jobs.http.request_ids import current_request_id
from omni_jobs.tenants.key_store import mask_keys


class RequestFilter(logging.Filter):
    """Gives each log record the id of its request, as ``request_id`` ("-" for none), and masks the API keys in it.

    Somebody may have put a key into a URL, also with escapes, or into a name. An error among a record's arguments, and
    the trace of one, may quote what a client sent.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current_request_id() or "-"
        if isinstance(record.msg, str):
            record.msg = mask_keys(record.msg)
        if isinstance(record.args, tuple):
            record.args = tuple(_masked(each) for each in record.args)
        if record.exc_info and record.exc_text is None:
            record.exc_text = mask_keys(_TRACES.formatException(record.exc_info))  # which a formatter takes as it is
        return True


_TRACES = logging.Formatter()


def _masked(value: object) -> object:
    """Return an argument of a log record, or its text where that has a key."""
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    masked = mask_keys(text)
    plain = unquote(masked) if "%" in masked else masked
    if (without := mask_keys(plain)) != plain:
        return quote(without, safe="/?&=…")
    return value if masked == text else masked


def log_config() -> dict[str, Any]:
    """Return uvicorn's configuration of logging, with the request's id in each line, and for ``omni_jobs`` too."""
    config = copy.deepcopy(LOGGING_CONFIG)
    for formatter in config["formatters"].values():
        formatter["fmt"] = formatter["fmt"].replace("%(levelprefix)s", "%(levelprefix)s [%(request_id)s]")
    config["filters"] = {"request": {"()": RequestFilter}}
    for handler in config["handlers"].values():
        handler["filters"] = ["request"]
    config["loggers"]["omni_jobs"] = {"handlers": ["default"]}
    return config
