"""``ListenProcessor``: the recordings in a job's messages become a Whisper stage's prompt."""

from typing import Any

from omni_jobs.errors import ModelError
from omni_jobs.prompts.messages import parts_of
from workers.models.whisper.parameters import WhisperParameters
from workers.models.whisper.whisper_prompt import SAMPLING_RATE, Recording, WhisperPrompt
from workers.stages.flow_processor import FlowProcessor
from workers.stages.types import StageInput


class ListenProcessor(FlowProcessor):
    """Decodes every recording of a job's messages, and leaves their text to later stages.

    Its name in a stage config is ``listen``.
    """

    def __call__(self, stage_input: StageInput[WhisperParameters]) -> WhisperPrompt:
        """Return the prompt, its recordings in the order of the messages.

        Raises InvalidRequest or RequestTooLarge naming the recording that does not decode, DecodersUnavailable,
        ConfigError without a media wall, and ModelError for a job without recordings.
        """
        recordings = [
            _decoded(stage_input, part["media"], field) for field, part in parts_of(stage_input.request, "audio")
        ]
        if not recordings:
            raise ModelError("there is no recording to listen to", field="messages")
        return WhisperPrompt(recordings, stage_input.parameters, stage_input.seed)


def _decoded(stage_input: StageInput[Any], number: int, field: str) -> Recording:
    with stage_input.wall_for(field) as wall:
        return Recording(wall.decode_audio(stage_input.media[number], SAMPLING_RATE), number, field)
