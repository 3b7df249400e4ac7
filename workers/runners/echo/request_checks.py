"""What admission asks of a request for an echo stage that makes sound or pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from omni_jobs.errors import InvalidRequest
from omni_jobs.prompts.messages import last_user_text, parts_of
from workers.runners.echo.parameters import ToneParameters
from workers.runners.echo.tone_length import tone_s

if TYPE_CHECKING:
    from omni_jobs.pipelines.stage_config import StageConfig

MOST_PICTURES: Final = 16
"""Of which one picture is made."""


def check_tone(stage: StageConfig, request: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a text that would sound for too long."""
    parameters = stage.parameters_with(request.get("parameters", {}).get(stage.name, {}))
    if isinstance(parameters, ToneParameters):
        tone_s(last_user_text(request), parameters)


def check_bars(stage: StageConfig, request: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for too many pictures."""
    _check_pictures(request, MOST_PICTURES, f"a picture is made of at most {MOST_PICTURES} others")


def check_moving_bars(stage: StageConfig, request: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for several pictures."""
    _check_pictures(request, 1, "a video starts from one picture: send a job for each")


def _check_pictures(request: Mapping[str, Any], most: int, message: str) -> None:
    fields = [field for field, _ in parts_of(request, "image")]
    if len(fields) > most:
        raise InvalidRequest(message, field=fields[most])
