"""What admission asks of a request for a remote stage: that it brings what the stage's endpoint cannot do without.

A pipeline of remote stages has no checkpoint, and so no prompt renderer that would check it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.prompts.messages import last_user_text, parts_of
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.parameters import Endpoint

if TYPE_CHECKING:
    from omni_jobs.pipelines.stage_config import StageConfig

_NO_PICTURE: Mapping[Endpoint, str] = {
    "images": "no picture: a message needs a part of the type image_url, or send it to /v1/images/edits",
    "videos": "no picture: a message needs a part of the type image_url, or send it as input_reference",
}
_NO_TEXT: Mapping[Endpoint, str] = {
    "speech": "there is nothing to say: the text has no letter and no digit",
    "images": "the description is empty",
    "videos": "the description is empty",
}


def check_chat(stage: "StageConfig", request: Mapping[str, Any]) -> None:
    """Raise InvalidRequest naming a medium that the stage's endpoint does not know."""
    if RemoteEngine.of(stage).endpoint == "responses":
        for field, _ in parts_of(request, "video"):
            raise InvalidRequest("responses take no video", field=field)


def check_text(stage: "StageConfig", request: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a request without the text or the picture that the stage is to begin with."""
    engine = RemoteEngine.of(stage)
    if not stage.inputs and not last_user_text(request).strip():
        raise InvalidRequest(_NO_TEXT.get(engine.endpoint, "there is no text"), field="messages")
    if engine.endpoint not in ("images", "videos"):
        return
    pictures = [field for field, _ in parts_of(request, "image")]
    if engine.needs_picture and not pictures:
        raise InvalidRequest(_NO_PICTURE[engine.endpoint], field="messages")
    if engine.endpoint == "videos" and len(pictures) > 1:
        raise InvalidRequest("a video starts from one picture: send a job for each", field=pictures[1])


def check_transcription(stage: "StageConfig", request: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a request without a recording, unless an earlier stage makes the sound."""
    if not stage.inputs and not any(parts_of(request, "audio")):
        raise InvalidRequest("no recording: a message needs a part of the type input_audio", field="messages")
