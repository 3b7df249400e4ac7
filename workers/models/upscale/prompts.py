"""What admission asks of a request whose picture is to be enlarged: one picture, and not too large a one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.info import ImageInfo
from omni_jobs.prompts.messages import picture_parts
from omni_jobs.prompts.renderers import TokenlessRenderer
from workers.models.upscale.networks import MOST_PIXELS, SCALE

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo

_LONGEST: Mapping[str, int] = {"png": 65_500, "jpeg": 65_500, "webp": 16_383}
"""Pixels of the longest side that a format can have."""


class UpscalePromptRenderer(TokenlessRenderer):
    """The ``PromptRenderer`` of a directory of networks, whose runner finds out which of them there are."""

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for a request that has no picture, or several."""
        fields = [field for field, _ in picture_parts(request["messages"])]
        if not fields:
            raise InvalidRequest(
                "no picture: a message needs a part of the type image_url, or send it to /v1/images/edits",
                field="messages",
            )
        if len(fields) > 1:
            raise InvalidRequest("a job enlarges one picture: send a job for each", field=fields[1])

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


def _check_size(info: ImageInfo, field: str, format: str | None) -> None:
    found = f"the picture has {info.width}×{info.height} pixels"
    if info.width * info.height > MOST_PIXELS:
        raise RequestTooLarge(f"{found}; at most {MOST_PIXELS} are enlarged", field=field)
    longest = _LONGEST.get(format or "", max(_LONGEST.values()))
    if SCALE * max(info.width, info.height) > longest:
        raise InvalidRequest(
            f"{found}; {SCALE} times as large it is no {format}, whose sides have at most {longest}", field=field
        )
