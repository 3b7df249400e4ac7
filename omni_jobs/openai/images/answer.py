"""``ImagesAnswer``: the answer to a request for pictures, a function of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel

from omni_jobs.views import JobView

GAP: Final = '"b64_json":""'
"""What stands in an answer where the base64 of a picture goes. Within a text its quotes would be escaped."""


class PictureInput(BaseModel):
    image_tokens: int
    text_tokens: int


class PictureUsage(BaseModel):
    """The tokens of all stages that count some.

    ``input_tokens_details`` are left out of what is made of pictures, because nobody counts these by themselves.
    """

    input_tokens: int
    input_tokens_details: PictureInput | None = None
    output_tokens: int
    total_tokens: int


class MadePicture(BaseModel):
    """A picture: its base64, or its URL."""

    b64_json: str | None = None
    url: str | None = None


class ImagesAnswer(BaseModel):
    """Pictures, in the order of their seeds."""

    created: int  # unix seconds
    data: list[MadePicture]
    output_format: str
    size: str | None = None  # as it was asked for; left out, it was not
    usage: PictureUsage | None = None  # left out: no stage counts


def images_answer(
    jobs: Sequence[JobView], format: str, size: str, *, has_sources: bool, urls: Sequence[str] | None = None
) -> ImagesAnswer:
    """Return the answer that these completed jobs are, a picture each.

    It has ``urls``; without them the place of each base64 is a GAP.
    """
    ended = [job.finished_at or job.created_at for job in jobs]
    pictures = [MadePicture(b64_json="") for _ in jobs] if urls is None else [MadePicture(url=url) for url in urls]
    return ImagesAnswer(
        created=int(max(ended).timestamp()),
        data=pictures,
        output_format=format,
        size=None if size == "auto" else size,
        usage=picture_usage(jobs, has_sources=has_sources),
    )


def picture_usage(jobs: Sequence[JobView], *, has_sources: bool) -> PictureUsage | None:
    """Return the tokens of these jobs together; None if no stage counts. ``has_sources``: they are made of pictures."""
    counted = [counts for job in jobs for counts in job.made.get("usage", {}).values()]
    if not counted:
        return None
    prompt, completion = (sum(each.get(name, 0) for each in counted) for name in ("prompt_tokens", "completion_tokens"))
    return PictureUsage(
        input_tokens=prompt,
        input_tokens_details=None if has_sources else PictureInput(image_tokens=0, text_tokens=prompt),
        output_tokens=completion,
        total_tokens=prompt + completion,
    )
