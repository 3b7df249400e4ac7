"""``RemoteTranscriptionProcessor``: a job's sound, or an earlier stage's waveform, is transcribed."""

import io
import wave
from typing import Any

import numpy as np

from omni_jobs.errors import ModelError
from omni_jobs.payloads import Payload, Tensor
from omni_jobs.pipelines.stage_config import StageConfig
from workers.runners.remote.prompt import RemoteFile, RemotePrompt
from workers.runners.remote.stage_parts import StageParts, media_of, number_of
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


class RemoteTranscriptionProcessor:
    """Makes the prompt of a transcription. Its name in a stage config is ``remote_transcription``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Check the stage's endpoint. Raises ConfigError."""
        del model
        self._parts = StageParts(stage, "transcriptions")

    def __call__(self, stage_input: StageInput[Any]) -> RemotePrompt:
        """Return the prompt. Raises ModelError unless there is one sound, InvalidRequest naming a parameter or sound.

        A job's sound is sent as it came; a waveform as a WAV of 16 bits.
        """
        made = [_wav(stage, payload) for stage, payload in stage_input.upstream.items()]
        sounds = [file for file, _ in made] or media_of(stage_input, "audio")
        if len(sounds) != 1:
            raise ModelError(f"a transcription takes one sound, and there are {len(sounds)}", field="messages")
        return RemotePrompt(
            parameters=self._parts.parameters(stage_input),
            seed=stage_input.seed,
            files=sounds,
            recording=None if made else number_of(stage_input, "audio"),
            duration_s=made[0][1] if made else None,
            capture=stage_input.has_successors,
        )


def _wav(stage: str, payload: Payload) -> tuple[RemoteFile, float]:
    """Return a stage's waveform as a file, and its duration in seconds. Raises ModelError if there is none."""
    information = payload.additional_information
    waveform = None if information is None else information.tensors.get("waveform")
    rate = None if information is None else information.values.get("sampling_rate")
    if not isinstance(waveform, Tensor) or waveform.dtype != "F32" or type(rate) is not int or rate < 1:
        raise ModelError(f"stage {stage} left no waveform", field=f"{stage}.tensors.waveform")
    samples = np.clip(np.nan_to_num(waveform.numpy().reshape(-1)), -1.0, 1.0)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())
    return RemoteFile("audio.wav", "audio/wav", buffer.getvalue()), len(samples) / rate
