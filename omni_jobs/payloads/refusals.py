"""How a refusal is worded: what it shows of foreign data, and whose payload it names."""

from __future__ import annotations

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge

__all__ = ["named", "shown", "too_many"]

_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """A value in ASCII, at most some 80 characters of it; of a list or an object its kind alone."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        value = value[: _SHOWN_CHARACTERS + 1]
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def too_many(size: int, limit: int) -> str:
    return f"{size} bytes, the limit is {limit}"


def named(
    error: PayloadError, *, key: str | None, stage: str | None = None, within: str | None = None
) -> PayloadTooLarge | PayloadCorrupt:
    """What a decoder refuses, with the key and the stage.

    ``within`` stands before a field that does not begin with it.
    """
    kind = PayloadTooLarge if isinstance(error, PayloadTooLarge) else PayloadCorrupt
    field = error.field
    if within is not None and field != within and not (field or "").startswith(f"{within}."):
        field = f"{within}.{field}" if field else within
    return kind(error.message, field=field, key=key, stage=stage)
