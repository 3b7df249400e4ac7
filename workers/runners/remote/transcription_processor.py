"""``RemoteTranscriptionProcessor``: a job's recordings, or the waveforms of earlier stages, are transcribed."""

import io
import wave
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from omni_jobs.errors import ModelError
from omni_jobs.payloads import Payload, Tensor
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.messages import parts_of
from workers.runners.remote.prompt import RemoteFile, RemotePrompt, RemoteRecording
from workers.runners.remote.stage_parts import StageParts, medium
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput

_MEASURED_HZ = 16_000


class RemoteTranscriptionProcessor:
    """Makes the prompt of a transcription. Its name in a stage config is ``remote_transcription``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Check the stage's endpoint. Raises ConfigError."""
        del model
        self._parts = StageParts(stage, "transcriptions")

    def __call__(self, stage_input: StageInput[Any]) -> RemotePrompt:
        """Return the prompt, its recordings in the order of the messages, or of the stage's inputs.

        A job's recording is sent as it came, a waveform as a WAV of 16 bits. Raises InvalidRequest naming a parameter
        or the recording that is none, DecodersUnavailable, and ModelError where there is nothing to transcribe.
        """
        made = [_made(stage, payload) for stage, payload in stage_input.upstream.items()]
        recordings = made or _measured(list(_brought(stage_input)), stage_input)
        if not recordings:
            raise ModelError("there is no recording to listen to", field="messages")
        return self._parts.prompt(stage_input, recordings=recordings)


def _brought(stage_input: StageInput[Any]) -> Iterator[RemoteRecording]:
    for field, part in parts_of(stage_input.request, "audio"):
        yield RemoteRecording(medium(stage_input, part, field), part["media"], field=field)


def _measured(recordings: list[RemoteRecording], stage_input: StageInput[Any]) -> list[RemoteRecording]:
    """Return recordings with their durations, if there are several: the times of a subtitle go on from one to the next.

    A server need not tell how long a recording is, and its silence at the end is in no segment.
    """
    if len(recordings) < 2 or stage_input.wall is None:
        return recordings
    measured = []
    for recording in recordings:
        with stage_input.wall_for(recording.field) as wall:
            samples = wall.decode_audio(recording.file.data, _MEASURED_HZ)
        measured.append(replace(recording, duration_s=len(samples) / _MEASURED_HZ))
    return measured


def _made(stage: str, payload: Payload) -> RemoteRecording:
    """Return a stage's waveform as a recording. Raises ModelError if there is none."""
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
    return RemoteRecording(RemoteFile("audio.wav", "audio/wav", buffer.getvalue()), duration_s=len(samples) / rate)
