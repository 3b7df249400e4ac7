"""What becomes of a speech's body: the request of its job."""

from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.speech.request import WantedSpeech, asked_speech
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import request_digest
from omni_jobs.tenants.caller import ANYONE
from tests.stage_configs import with_remote

PIPELINES = load_pipelines(Path(__file__).parents[3] / "stage_configs")


def speech(model: str = "speech", **more: Any) -> AskedJobs[WantedSpeech]:
    return asked_speech({"model": model, "input": "Hello", **more}, PIPELINES)


@pytest.mark.parametrize("model", ["speech", "voice", "echo_media", "qwen2_5_omni"])
def test_whatever_makes_sound_of_text_speaks(model: str) -> None:
    asked = speech(model, voice={"id": "nova"}, response_format="wav", seed=4)
    assert asked.requests[0].modalities == ["audio"]
    assert asked.requests[0].audio is not None
    assert (asked.requests[0].audio.voice, asked.requests[0].audio.format, asked.requests[0].seed) == ("nova", "wav", 4)
    assert asked.answer.stage == PIPELINES[model].outputs["audio"].stage
    assert asked.requests[0].messages is not None
    assert asked.requests[0].messages[0].content == "Hello"


@pytest.mark.parametrize("model", ["transcribe", "chat", "qwen_image"])
def test_other_pipelines_do_not(model: str) -> None:
    with pytest.raises(InvalidRequest, match="does not make audio of text") as caught:
        speech(model)
    assert caught.value.field == "model"


def test_the_default_is_mp3() -> None:
    audio = speech().requests[0].audio
    assert audio is not None
    assert (audio.voice, audio.format) == (None, "mp3")


@pytest.mark.parametrize(
    ("model", "stage"), [("speech", "acoustic"), ("voice", "acoustic"), ("echo_media", "sound"), ("remote", "voice")]
)
def test_a_speed_goes_to_the_stage_that_has_one(model: str, stage: str, tmp_path: Path) -> None:
    asked = asked_speech({"model": model, "input": "x", "speed": 2}, with_remote(tmp_path))
    assert asked.requests[0].stages == {stage: {"speed": 2.0}}


def test_a_pipeline_without_a_speed_takes_1_alone() -> None:
    assert speech("qwen2_5_omni", speed=1).requests[0].stages is None
    with pytest.raises(InvalidRequest, match="at its own speed") as caught:
        speech("qwen2_5_omni", speed=1.1)
    assert caught.value.field == "speed"


def test_instructions_go_to_the_stage_that_takes_them(tmp_path: Path) -> None:
    body = {"model": "remote", "input": "x", "instructions": "Whisper it.", "stages": {"voice": {"speed": 1.5}}}
    asked = asked_speech(body, with_remote(tmp_path))
    assert asked.requests[0].stages == {"voice": {"speed": 1.5, "instructions": "Whisper it."}}
    with pytest.raises(InvalidRequest, match="no stage") as caught:
        speech(instructions="Whisper it.")
    assert caught.value.field == "instructions"


def test_how_the_sound_is_sent_is_no_part_of_what_was_sent() -> None:
    body = {"model": "speech", "input": "Hello", "stream_format": "sse"}
    asked = asked_speech(body, PIPELINES)
    assert asked.answer.as_events
    [submission] = asked.submissions(body, 9, ANYONE, "k")
    assert submission.digest == request_digest({"model": "speech", "input": "Hello"})
