"""The processors of remote stages: from a job, or what earlier stages made, to a prompt."""

import base64
import io
import wave
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import ConfigError, InvalidRequest, ModelError
from omni_jobs.media.wall import MediaWall
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.settings import Settings
from tests.oracles import samples
from tests.remote_stages import engine_settings
from workers.runners.remote.parameters import RemoteParameters
from workers.runners.remote.processors import (
    RemoteChatProcessor,
    RemoteTextProcessor,
    RemoteTranscriptionProcessor,
    medium,
)
from workers.runners.remote.prompt import RemoteFile
from workers.stages.stage import Stage
from workers.stages.types import StageInput

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
WAV = b"RIFF\0\0\0\0WAVEfmt "
MP4 = b"\0\0\0\x18ftypmp42"


def stage(endpoint: str, processor: str = "remote_x", parameters: Mapping[str, Any] | None = None) -> StageConfig:
    """A stage config of an endpoint, whose runner need not be installed."""
    config = StageConfig.model_construct(name="llm", kind="remote", processor=processor, parameters=parameters or {})
    config.__dict__["engine_settings"] = engine_settings(endpoint)
    config.__dict__["engine"] = config.__dict__["engine_settings"]
    return config


def stage_input(
    request: Mapping[str, Any] | None = None,
    *,
    media: list[bytes] | None = None,
    upstream: Mapping[str, Payload] | None = None,
    parameters: StageParameters | None = None,
    has_successors: bool = False,
) -> StageInput:
    return StageInput(
        job_id="job_1",
        request=request or {},
        media=media or [],
        upstream=upstream or {},
        parameters=parameters or RemoteParameters(),
        seed=3,
        capture=False,
        has_successors=has_successors,
    )


def payload(tensors: Mapping[str, Tensor], values: Mapping[str, Any] | None = None) -> Payload:
    return Payload(
        manifest=Manifest(kind="text", job_id="job_1", stage="think", attempt=1),
        additional_information=AdditionalInformationPayload(tensors=dict(tensors), values=dict(values or {})),
    )


def text_payload(text: bytes) -> Payload:
    return payload({"text": Tensor("U8", (len(text),), memoryview(text))})


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


# Chat.


def test_messages_carry_their_media_in_the_format_that_is_found() -> None:
    kinds = ("image", "audio", "video")
    content = [{"type": "text", "text": "What?"}, *({"type": kind, "media": n} for n, kind in enumerate(kinds))]
    request = {"messages": [{"role": "system", "content": "Be brief."}, *user(content)["messages"]]}
    prompt = RemoteChatProcessor(stage("chat"), None)(stage_input(request, media=[PNG, WAV, MP4], has_successors=True))
    assert prompt.messages == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(PNG)}"}},
                {"type": "input_audio", "input_audio": {"data": _base64(WAV), "format": "wav"}},
                {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{_base64(MP4)}"}},
            ],
        },
    ]
    assert (prompt.seed, prompt.capture, prompt.parameters) == (3, True, RemoteParameters())


def test_voice_and_format_are_those_of_the_job() -> None:
    request = {**user("Hi"), "audio": {"voice": "alloy", "format": "mp3"}}
    prompt = RemoteChatProcessor(stage("chat"), None)(stage_input(request))
    assert (prompt.voice, prompt.audio_format) == ("alloy", "mp3")


def test_a_medium_of_no_known_format_is_named() -> None:
    content = [{"type": "text", "text": "What?"}, {"type": "image", "media": 0}]
    with pytest.raises(InvalidRequest, match="no image") as caught:
        RemoteChatProcessor(stage("chat"), None)(stage_input(user(content), media=[WAV]))
    assert caught.value.field == "messages.0.content.1"


def test_embeddings_are_refused() -> None:
    with pytest.raises(ModelError, match="messages"):
        RemoteChatProcessor(stage("chat"), None)(stage_input({"prompt_embeds": {"media": 0}}))


# Parameters.


def test_a_parameter_of_another_endpoint_is_named_before_the_processor_is_asked() -> None:
    engine = {"server": "local", "endpoint": "chat", "model": "m"}
    llm = {"name": "llm", "kind": "remote", "processor": "remote_chat", "produces": "text", "engine": engine}
    far = {"name": "far", "version": "1", "stages": {"llm": llm}, "outputs": {"text": {"stage": "llm"}}}
    pipeline = Pipeline.model_validate(far)
    request = {**user("Hi"), "parameters": {"llm": {"temperature": 0.5, "size": "64x64"}}}
    with pytest.raises(InvalidRequest, match="no parameter of the endpoint chat") as caught:
        Stage(pipeline, pipeline.stage("llm"), None).input_of(
            job_id="job_1", request=request, media=[], upstream={}, seed=3, has_successors=False
        )
    assert caught.value.field == "stages.llm.size"


@pytest.mark.parametrize(
    ("processor", "endpoint"),
    [
        (RemoteChatProcessor, "speech"),
        (RemoteTextProcessor, "transcriptions"),
        (RemoteTranscriptionProcessor, "chat"),
    ],
)
def test_a_processor_is_refused_for_another_endpoint(processor: Any, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=f"not {endpoint}") as caught:
        processor(stage(endpoint), None)
    assert caught.value.field == "processor"


# Text.


def test_a_text_is_what_earlier_stages_made() -> None:
    upstream = {"think": text_payload("Grüße".encode()), "more": text_payload(b"Bye")}
    prompt = RemoteTextProcessor(stage("speech"), None)(stage_input(user("Hi"), upstream=upstream))
    assert (prompt.text, prompt.messages) == ("Grüße\n\nBye", ())


def test_a_text_is_the_last_user_message_of_a_first_stage() -> None:
    content = [{"type": "text", "text": "A cat"}, {"type": "image", "media": 0}, {"type": "text", "text": "asleep"}]
    request = {"messages": [*user("A dog")["messages"], *user(content)["messages"]]}
    prompt = RemoteTextProcessor(stage("images"), None)(stage_input(request, media=[PNG]))
    assert prompt.text == "A cat\nasleep"
    assert [(file.name, file.media_type, file.data) for file in prompt.files] == [("image.png", "image/png", PNG)]


def test_a_text_becomes_the_message_of_a_chat() -> None:
    prompt = RemoteTextProcessor(stage("chat"), None)(stage_input(upstream={"listen": text_payload(b"What?")}))
    assert prompt.messages == [{"role": "user", "content": "What?"}]


@pytest.mark.parametrize("text", [b"", b" \n"])
def test_no_text_is_refused(text: bytes) -> None:
    with pytest.raises(ModelError, match="no text"):
        RemoteTextProcessor(stage("speech"), None)(stage_input(upstream={"think": text_payload(text)}))


@pytest.mark.parametrize("broken", [text_payload(b"\xff\xfe"), payload({})])
def test_a_payload_that_is_no_text_is_named(broken: Payload) -> None:
    with pytest.raises(ModelError, match="think") as caught:
        RemoteTextProcessor(stage("speech"), None)(stage_input(upstream={"think": broken}))
    assert caught.value.field == "think.tensors.text"


# Transcriptions.


def test_the_sound_of_a_job_is_sent_as_it_came() -> None:
    request = user([{"type": "audio", "media": 0}])
    prompt = RemoteTranscriptionProcessor(stage("transcriptions"), None)(stage_input(request, media=[WAV]))
    (recording,) = prompt.recordings
    assert recording.file == RemoteFile("audio.wav", "audio/wav", WAV)
    assert (recording.media, recording.duration_s, recording.field) == (0, None, "messages.0.content.0")


def test_a_recording_has_its_number_among_all_media() -> None:
    request = user([{"type": "image", "media": 0}, {"type": "audio", "media": 1}])
    prompt = RemoteTranscriptionProcessor(stage("transcriptions"), None)(stage_input(request, media=[PNG, WAV]))
    assert [each.media for each in prompt.recordings] == [1]


def test_a_waveform_is_sent_as_a_wav() -> None:
    spoken = np.array([0.0, 1.0, -1.0, 5.0, np.nan, 0.5], np.float32)
    upstream = {"speak": payload({"waveform": Tensor.from_numpy(spoken)}, {"sampling_rate": 24_000})}
    prompt = RemoteTranscriptionProcessor(stage("transcriptions"), None)(stage_input(upstream=upstream))
    (recording,) = prompt.recordings
    assert (recording.media, recording.duration_s, recording.field) == (None, 6 / 24_000, None)
    with wave.open(io.BytesIO(recording.file.data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        sent = np.frombuffer(file.readframes(9), "<i2")
    assert sent.tolist() == [0, 32767, -32767, 32767, 0, 16384]


def test_every_recording_of_all_messages_is_taken_in_order_and_measured() -> None:
    sounds = [samples.wav(0.5), PNG, samples.wav(0.25), samples.wav(1.0)]
    first = [{"type": "audio", "media": 0}, {"type": "image", "media": 1}, {"type": "audio", "media": 2}]
    messages = [*user(first)["messages"], *user([{"type": "audio", "media": 3}])["messages"]]
    with MediaWall(Settings()) as wall:
        given = stage_input({"messages": messages}, media=sounds)._replace(wall=wall)
        prompt = RemoteTranscriptionProcessor(stage("transcriptions"), None)(given)
    assert [(each.media, each.duration_s, each.field) for each in prompt.recordings] == [
        (0, 0.5, "messages.0.content.0"),
        (2, 0.25, "messages.0.content.2"),
        (3, 1.0, "messages.1.content.0"),
    ]
    assert [each.file.data for each in prompt.recordings] == [sounds[0], sounds[2], sounds[3]]


def test_a_recording_that_cannot_be_measured_is_named() -> None:
    request = user([{"type": "audio", "media": 0}, {"type": "audio", "media": 1}])
    processor = RemoteTranscriptionProcessor(stage("transcriptions"), None)
    with MediaWall(Settings()) as wall:
        given = stage_input(request, media=[samples.wav(0.5), WAV])._replace(wall=wall)
        with pytest.raises(InvalidRequest) as caught:
            processor(given)
    assert caught.value.field == "messages.0.content.1"


def test_the_waveforms_of_several_stages_are_taken_in_order() -> None:
    made = [np.zeros(n, np.float32) for n in (8_000, 16_000)]
    upstream = {
        f"speak_{n}": payload({"waveform": Tensor.from_numpy(one)}, {"sampling_rate": 16_000})
        for n, one in enumerate(made)
    }
    prompt = RemoteTranscriptionProcessor(stage("transcriptions"), None)(stage_input(upstream=upstream))
    assert [each.duration_s for each in prompt.recordings] == [0.5, 1.0]


def test_a_transcription_without_a_recording_fails() -> None:
    with pytest.raises(ModelError, match="no recording to listen to"):
        RemoteTranscriptionProcessor(stage("transcriptions"), None)(stage_input(user("Hi")))


def test_a_payload_that_is_no_waveform_is_named() -> None:
    with pytest.raises(ModelError) as caught:
        RemoteTranscriptionProcessor(stage("transcriptions"), None)(stage_input(upstream={"speak": payload({})}))
    assert caught.value.field == "speak.tensors.waveform"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("kind", "data", "name", "media_type"),
    [
        ("audio", b"\0\0\0\x1cftypM4A " + bytes(20), "audio.m4a", "audio/mp4"),
        ("audio", b"\x1a\x45\xdf\xa3" + bytes(20), "audio.webm", "audio/webm"),
        ("audio", b"#!AMR\n" + bytes(20), "audio.amr", "audio/amr"),
        ("audio", b"caff" + bytes(20), "audio.caf", "audio/x-caf"),
        ("image", b"\0\0\0\x1cftypavif" + bytes(20), "image.avif", "image/avif"),
        ("image", b"II*\0" + bytes(20), "image.tiff", "image/tiff"),
        ("image", b"BM" + bytes(20), "image.bmp", "image/bmp"),
        ("video", b"\0\0\0\x14ftyp3gp4" + bytes(20), "video.3gp", "video/3gpp"),
    ],
)
def test_servers_get_all_formats_that_a_request_may_have(kind: str, data: bytes, name: str, media_type: str) -> None:
    found = medium(stage_input(media=[data]), {"type": kind, "media": 0}, "messages.0")
    assert (found.name, found.media_type, found.data) == (name, media_type, data)
