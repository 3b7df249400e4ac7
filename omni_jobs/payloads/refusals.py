"""Errors about payloads: how they show foreign data, and which class, key and stage a decoder's error has."""

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge

_MAX_CHARACTERS = 80


def brief(value: object) -> str:
    """Return a foreign value for an error message: ASCII cut after 80 characters, or just "a list" or "an object"."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        value = value[: _MAX_CHARACTERS + 1]
    text = ascii(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def over_limit(size: int, limit: int) -> str:
    """Return the error message for ``size`` bytes where ``limit`` bytes are allowed."""
    return f"{size} bytes, the limit is {limit}"


def as_decode_error(
    error: PayloadError, *, key: str | None, stage: str | None = None, within: str | None = None
) -> PayloadTooLarge | PayloadCorrupt:
    """Return ``error`` as a decoder raises it: PayloadTooLarge or else PayloadCorrupt, naming ``key`` and ``stage``.

    ``within`` is prefixed to the error's field where the field does not begin with it.
    """
    kind = PayloadTooLarge if isinstance(error, PayloadTooLarge) else PayloadCorrupt
    field = error.field
    if within is not None and field != within and not (field or "").startswith(f"{within}."):
        field = f"{within}.{field}" if field else within
    return kind(error.message, field=field, key=key, stage=stage)
