"""The names of tensors, members and values."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from omni_jobs.errors import PayloadError
from omni_jobs.payloads.refusals import shown

__all__ = ["PROMPT_EMBEDS", "TENSORS", "check_name", "is_tensor_name"]

PROMPT_EMBEDS: Final = "prompt_embeds"
TENSORS: Final = "tensors"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@lru_cache(maxsize=1024)  # the payloads of one stage have the same names
def _is_name(text: str) -> bool:
    return _NAME.match(text) is not None


def check_name(name: object, at: str) -> None:
    """Raise PayloadError, of the field ``at``, for what is no name."""
    if not isinstance(name, str) or not _is_name(name):
        raise PayloadError(f"{shown(name)} is not a name: 1 to 64 of A-Z a-z 0-9 _ -", field=at)


def is_tensor_name(name: str) -> bool:
    """Whether a payload's file may have a tensor of that name: prompt_embeds, tensors.NAME, tensors.NAME.MEMBER."""
    if name == PROMPT_EMBEDS:
        return True
    prefix, *parts = name.split(".")
    return prefix == TENSORS and 1 <= len(parts) <= 2 and all(map(_is_name, parts))
