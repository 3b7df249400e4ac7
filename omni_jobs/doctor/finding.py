"""``Finding``: what an examination has found."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Finding(BaseModel):
    """What is well or not about a thing, and what to do about it. No secret stands in it.

    about    the thing: settings, database, versions, broker, storage, tls, files, disk, cards, or a pipeline's name
    state    warning: it works, and may not for long or not for all. error: something does not work
    remedy   what to do; None where all is well
    figures  what was measured, by name; the unit ends the name: _s, _bytes
    """

    model_config = ConfigDict(frozen=True)

    about: str
    state: Literal["ok", "warning", "error"]
    message: str
    remedy: str | None = None
    figures: dict[str, Any] = {}
