"""What admission asks of a request whose picture is to be enlarged: one picture, and not too large a one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.info import ImageInfo
from omni_jobs.prompts.picture_parts import picture_parts
from workers.models.upscale.networks import MOST_PIXELS, SCALE

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.pipelines.stage_config import StageConfig

_LONGEST: Mapping[str, int] = {"png": 65_500, "jpeg": 65_500, "webp": 16_383}
"""Pixels of the longest side that a format can have."""


class UpscalePromptRenderer:
    """The ``PromptRenderer`` of a directory of networks. Its prompt is a picture, which has no tokens."""

    max_model_len = 1
    hidden_size = 0  # it takes no embeddings
    longest_audio_s = None

    def __init__(self, model_dir: Path) -> None:
        """Do nothing: which networks the directory must have, the stage says, whose runner loads them."""

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return False  # a directory of networks has no config.json

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for a request that has no picture, or several."""
        fields = [field for field, _ in picture_parts(request["messages"])]
        if not fields:
            raise InvalidRequest("no picture: a message needs a part of the type image_url", field="messages")
        if len(fields) > 1:
            raise InvalidRequest("a job enlarges one picture: send a job for each", field=fields[1])

    def render(self, request: Mapping[str, Any]) -> str:
        """Return nothing: a picture has no text."""
        return ""

    def encode(self, request: Mapping[str, Any]) -> None:
        """Return None: a picture has no tokens."""

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Return 0, once the picture's size is checked.

        Raises RequestTooLarge for more than ``MOST_PIXELS``, and InvalidRequest for a side that the job's image format
        cannot have once it is enlarged.
        """
        for field, number in picture_parts(request["messages"]):
            info = media[number]
            if isinstance(info, ImageInfo):
                _check_size(info, field, (request.get("image") or {}).get("format"))
        return 0

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        return self.max_model_len


def _check_size(info: ImageInfo, field: str, format: str | None) -> None:
    found = f"the picture has {info.width}×{info.height} pixels"
    if info.width * info.height > MOST_PIXELS:
        raise RequestTooLarge(f"{found}; at most {MOST_PIXELS} are enlarged", field=field)
    longest = _LONGEST.get(format or "", max(_LONGEST.values()))
    if SCALE * max(info.width, info.height) > longest:
        raise InvalidRequest(
            f"{found}; {SCALE} times as large it is no {format}, whose sides have at most {longest}", field=field
        )
