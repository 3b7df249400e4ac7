"""The values of a payload: small JSON data beside the tensors."""

import math
from collections.abc import Mapping
from typing import Any

from omni_jobs.errors import PayloadError, PayloadTooLarge
from omni_jobs.payloads.header_json import check_text, dump, load
from omni_jobs.payloads.names import check_name
from omni_jobs.payloads.refusals import brief, over_limit
from omni_jobs.payloads.wire_limits import WRITER_LIMITS, PayloadLimits


def dump_values(values: Mapping[str, Any]) -> str:
    """Return the values as JSON. Raises PayloadError and PayloadTooLarge for values that a reader would refuse."""
    _check_values(values, WRITER_LIMITS)
    text = dump(dict(values), "values")
    _check_size(text, WRITER_LIMITS)
    return text


def load_values(text: str, limits: PayloadLimits) -> dict[str, Any]:
    """Parse and check values. Raises PayloadError and PayloadTooLarge."""
    _check_size(text, limits)
    values = load(text, "values")
    _check_values(values, limits)
    return dict(values)


def _check_size(text: str, limits: PayloadLimits) -> None:
    size = len(text.encode())
    if size > limits.max_values_bytes:
        raise PayloadTooLarge(over_limit(size, limits.max_values_bytes), field="values")


def _check_values(values: object, limits: PayloadLimits) -> None:
    """Refuse what JSON does not carry unchanged: other types, non-finite numbers, lone surrogates, deep nesting."""
    if not isinstance(values, Mapping):
        raise PayloadError("not an object", field="values")
    for name, value in values.items():
        check_name(name, "values")
        _check_value(value, f"values.{name}", limits.max_values_depth)


def _check_value(value: object, field: str, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        check_text(value, field)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise PayloadError("an integer of more than 64 bits", field=field)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadError("a number that is not finite", field=field)
    elif isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise PayloadTooLarge("nested too deeply", field=field)
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    raise PayloadError(f"the name {brief(name)} is not text", field=field)
                check_text(name, field)
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_value(item, field, depth - 1)
    else:
        raise PayloadError(f"JSON has no {type(value).__name__}", field=field)
