"""The small values beside the tensors: anything JSON holds, in JSON's own limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omni_jobs.errors import PayloadError, PayloadTooLarge
from omni_jobs.payloads.names import check_name
from omni_jobs.payloads.refusals import shown, too_many
from omni_jobs.payloads.strict_json import check_text, dump, load
from omni_jobs.payloads.wire_limits import WRITER_LIMITS, PayloadLimits

__all__ = ["dump_values", "load_values"]


def dump_values(values: Mapping[str, Any]) -> str:
    """Raises PayloadError and PayloadTooLarge for what a reader would refuse."""
    _check_values(values, WRITER_LIMITS)
    dumped = dump(dict(values), "values")
    size = len(dumped.encode())
    if size > WRITER_LIMITS.max_values_bytes:
        raise PayloadTooLarge(too_many(size, WRITER_LIMITS.max_values_bytes), field="values")
    return dumped


def load_values(text: str, limits: PayloadLimits) -> dict[str, Any]:
    """Raises PayloadError and PayloadTooLarge."""
    size = len(text.encode())
    if size > limits.max_values_bytes:
        raise PayloadTooLarge(too_many(size, limits.max_values_bytes), field="values")
    values = load(text, "values")
    _check_values(values, limits)
    return dict(values)


def _check_values(values: object, limits: PayloadLimits) -> None:
    """Refuse what does not survive JSON: other types, non-finite numbers, lone surrogates, deep nesting."""
    if not isinstance(values, Mapping):
        raise PayloadError("not an object", field="values")
    for name, value in values.items():
        check_name(name, "values")
        _check_value(value, f"values.{name}", limits.max_values_depth)


def _check_value(value: object, at: str, depth: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        check_text(value, at)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise PayloadError("an integer of more than 64 bits", field=at)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadError("a number that is not finite", field=at)
    elif isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise PayloadTooLarge("nested too deeply", field=at)
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    raise PayloadError(f"the name {shown(name)} is not text", field=at)
                check_text(name, at)
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_value(item, at, depth - 1)
    else:
        raise PayloadError(f"JSON has no {type(value).__name__}", field=at)
