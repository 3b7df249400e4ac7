"""The names that tensors, their members and values may have in a payload."""

import re
from typing import Final

from omni_jobs.errors import PayloadError
from omni_jobs.payloads.refusals import brief

PROMPT_EMBEDS: Final = "prompt_embeds"
TENSORS: Final = "tensors"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def check_name(name: object, field: str) -> None:
    """Raise PayloadError, of ``field``, unless ``name`` is text of 1 to 64 of ``A-Z a-z 0-9 _ -``."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise PayloadError(f"{brief(name)} is not a name: 1 to 64 of A-Z a-z 0-9 _ -", field=field)


def is_tensor_name(name: str) -> bool:
    """Return whether a payload may have a tensor of that name: prompt_embeds, tensors.NAME or tensors.NAME.MEMBER."""
    if name == PROMPT_EMBEDS:
        return True
    prefix, *parts = name.split(".")
    return prefix == TENSORS and 1 <= len(parts) <= 2 and all(map(_NAME.match, parts))
