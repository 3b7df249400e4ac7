"""The input processors of remote stages: what a job says, or an earlier stage made, becomes what a server is asked.

Media of a job are sent as they came.
"""

import base64
import io
import wave
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from omni_jobs.errors import ConfigError, InvalidRequest, ModelError
from omni_jobs.media.formats import Kind, format_of
from omni_jobs.payloads import Payload, Tensor
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.messages import last_user_text, parts_of
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.parameters import Endpoint
from workers.runners.remote.prompt import RemoteFile, RemotePrompt, RemoteRecording
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput

_MEASURED_HZ = 16_000


class RemoteProcessor:
    """The base of them: the stage's engine settings, and all of a prompt that does not depend on the endpoint."""

    endpoints: ClassVar[Sequence[Endpoint]]
    """Those that the processor serves."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Check the stage's endpoint. Raises ConfigError."""
        del model
        self.engine = RemoteEngine.of(stage)
        if self.engine.endpoint not in self.endpoints:
            known = ", ".join(self.endpoints)
            raise ConfigError(
                f"processor {stage.processor} is for the endpoints {known}, not {self.engine.endpoint}",
                field="processor",
                stage=stage.name,
            )

    def prompt(self, stage_input: StageInput[Any], **fields: Any) -> RemotePrompt:
        """Return a job's prompt with these ``fields`` of it."""
        audio = stage_input.request.get("audio") or {}
        return RemotePrompt(
            parameters=stage_input.parameters,
            seed=stage_input.seed,
            voice=audio.get("voice"),
            audio_format=audio.get("format"),
            capture=stage_input.has_successors,
            **fields,
        )


class RemoteChatProcessor(RemoteProcessor):
    """A job's messages and media become a chat's or a response's. Its name in a stage config is ``remote_chat``."""

    endpoints = ("chat", "responses")

    def __call__(self, stage_input: StageInput[Any]) -> RemotePrompt:
        """Return the prompt. Raises InvalidRequest naming a medium, and ModelError for embeddings."""
        if not stage_input.request.get("messages"):
            raise ModelError("a remote server takes messages", field="messages")
        return self.prompt(
            stage_input,
            messages=[
                _message(stage_input, message, f"messages.{position}")
                for position, message in enumerate(stage_input.request["messages"])
            ],
            tool_use=_tool_use(stage_input.request),
        )


def _tool_use(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat completion that offer tools, without what its being missing means as well."""
    if "tools" not in request:
        return {}
    lone = {} if request["parallel_tool_calls"] else {"parallel_tool_calls": False}
    return {"tools": request["tools"], "tool_choice": request["tool_choice"], **lone}


def _message(stage_input: StageInput[Any], message: Mapping[str, Any], field: str) -> dict[str, Any]:
    content = message["content"]
    if not isinstance(content, str):
        content = [
            part if part["type"] == "text" else _part(stage_input, part, f"{field}.content.{place}")
            for place, part in enumerate(content)
        ]
    calls = {name: message[name] for name in ("tool_calls", "tool_call_id") if name in message}
    return {"role": message["role"], "content": content or (None if "tool_calls" in calls else content), **calls}


def _part(stage_input: StageInput[Any], part: Mapping[str, Any], field: str) -> dict[str, Any]:
    file = medium(stage_input, part, field)
    data = base64.b64encode(file.data).decode()
    if part["type"] == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": file.name.partition(".")[2]}}
    name = f"{part['type']}_url"
    return {"type": name, name: {"url": f"data:{file.media_type};base64,{data}"}}


class RemoteTextProcessor(RemoteProcessor):
    """A text is spoken, drawn or answered: what earlier stages made, or else the last user message.

    Of chat and responses it becomes the user's message. Images and videos take the job's pictures, too, to start from.
    Its name in a stage config is ``remote_text``.
    """

    endpoints = ("chat", "responses", "speech", "images", "videos")

    def __call__(self, stage_input: StageInput[Any]) -> RemotePrompt:
        """Return the prompt. Raises ModelError for no text, and InvalidRequest naming a picture."""
        texts = [_text(stage, payload) for stage, payload in stage_input.upstream.items()]
        text = "\n\n".join(texts or [last_user_text(stage_input.request)])
        if not text.strip():
            raise ModelError("there is no text", field="messages")
        takes_pictures = self.engine.endpoint in ("images", "videos")
        pictures = parts_of(stage_input.request, "image") if takes_pictures else ()
        return self.prompt(
            stage_input,
            messages=[{"role": "user", "content": text}] if self.engine.endpoint in ("chat", "responses") else (),
            text=text,
            files=[medium(stage_input, part, field) for field, part in pictures],
        )


def _text(stage: str, payload: Payload) -> str:
    """Return the text that an earlier stage made, of its flow ``text``. Raises ModelError if there is none."""
    information = payload.additional_information
    tensor = None if information is None else information.tensors.get("text")
    try:
        return bytes(tensor.data).decode()  # type: ignore[union-attr]
    except (AttributeError, UnicodeDecodeError):
        raise ModelError(f"stage {stage} left no text in UTF-8", field=f"{stage}.tensors.text") from None


class RemoteTranscriptionProcessor(RemoteProcessor):
    """A job's recordings, or the waveforms of earlier stages, are transcribed.

    Its name in a stage config is ``remote_transcription``.
    """

    endpoints = ("transcriptions",)

    def __call__(self, stage_input: StageInput[Any]) -> RemotePrompt:
        """Return the prompt, its recordings in the order of the messages, or of the stage's inputs.

        A waveform is sent as a WAV of 16 bits. Raises InvalidRequest naming the recording that is none,
        DecodersUnavailable, and ModelError where there is nothing to transcribe.
        """
        made = [_made(stage, payload) for stage, payload in stage_input.upstream.items()]
        recordings = made or _measured(list(_brought(stage_input)), stage_input)
        if not recordings:
            raise ModelError("there is no recording to listen to", field="messages")
        return self.prompt(stage_input, recordings=recordings)


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


def medium(stage_input: StageInput[Any], part: Mapping[str, Any], field: str) -> RemoteFile:
    """Return the medium that a part of a message names. Raises InvalidRequest for bytes of no known format."""
    kind: Kind = part["type"]
    data = bytes(stage_input.media[part["media"]])
    found = format_of(kind, data)
    if found is None:
        raise InvalidRequest(f"no {kind} of a known format", field=field)
    return RemoteFile(f"{kind}.{found.name}", found.media_type, data)
