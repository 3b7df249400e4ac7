"""What a submit to a remote pipeline must bring, checked before the job is taken, in the words of the local stages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_jobs.errors import ConfigError, InvalidRequest, PluginBroken
from omni_jobs.media.wall import MediaWall
from omni_jobs.new_job import NewJob
from omni_jobs.pipelines.loader import Pipelines, load_pipeline
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from tests.oracles import samples
from workers.models.hibari.prompts import HibariPromptRenderer
from workers.models.upscale.prompts import UpscalePromptRenderer
from workers.models.whisper.prompts import WhisperPromptRenderer
from workers.runners.remote import request_checks

PROCESSORS = {"chat": "remote_chat", "responses": "remote_chat", "transcriptions": "remote_transcription"}
MADE = {"speech": ("waveform", "audio"), "images": ("pixels", "image"), "videos": ("pixels", "video")}
SOUND = samples.audio_part(samples.wav(0.1))
PICTURE = samples.image_part(samples.image(32, 32))
TEXT = {"type": "text", "text": "A cat."}


_WALLS: list[MediaWall] = []


@pytest.fixture(scope="module", autouse=True)
def wall() -> Iterator[None]:
    """One for all, as a server has one."""
    with MediaWall(Settings()) as found:
        _WALLS.append(found)
        yield
    _WALLS.clear()


def stage(endpoint: str, processor: str | None = None, **engine: Any) -> dict[str, Any]:
    produces, _ = MADE.get(endpoint, ("text", "text"))
    settings = {"server": "local", "endpoint": endpoint, "model": "m", **engine}
    processor = processor or PROCESSORS.get(endpoint, "remote_text")
    return {"kind": "remote", "processor": processor, "produces": produces, "engine": settings}


def submitted(directory: Path, stages: dict[str, Any], content: Any) -> NewJob:
    """Submit a user message to a pipeline of these stages, whose last one makes its output."""
    name, last = list(stages.items())[-1]
    _, modality = MADE.get(last["engine"]["endpoint"], ("text", "text"))
    path = directory / "far.yaml"
    config = {
        "name": "far",
        "version": "1",
        "accepts": ["text", "audio", "image", "video"],
        "stages": stages,
        "outputs": {modality: {"stage": name}},
    }
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    request = {"model": "far", "messages": [{"role": "user", "content": content}], "modalities": [modality]}
    return admit(parse(request, Settings()), Pipelines([load_pipeline(path)]), Settings(), wall=_WALLS[0])


def refused(directory: Path, stages: dict[str, Any], content: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        submitted(directory, stages, content)
    assert caught.value.http_status == 422
    return caught.value.field, caught.value.message


def local(renderer: type[Any], content: Any) -> tuple[str | None, str]:
    """Return what the renderer of a local stage says of a message."""
    with pytest.raises(InvalidRequest) as caught:
        renderer.__new__(renderer).check({"messages": [{"role": "user", "content": content}]})
    return caught.value.field, caught.value.message


@pytest.mark.parametrize("content", ["Listen!", [TEXT], [TEXT, PICTURE]])
def test_a_transcription_needs_a_recording(tmp_path: Path, content: Any) -> None:
    found = refused(tmp_path, {"listen": stage("transcriptions")}, content)
    assert found == local(WhisperPromptRenderer, "Listen!")
    assert found[0] == "messages"


def test_a_transcription_takes_several_recordings(tmp_path: Path) -> None:
    assert len(submitted(tmp_path, {"listen": stage("transcriptions")}, [SOUND, TEXT, SOUND]).unstored) == 2


def test_a_transcription_of_made_sound_needs_none(tmp_path: Path) -> None:
    listen = {**stage("transcriptions"), "inputs": {"speak": "waveform"}}
    submitted(tmp_path, {"speak": stage("speech"), "listen": listen}, "Say it.")


@pytest.mark.parametrize("content", [" \n", [SOUND], [{"type": "text", "text": " "}, PICTURE]])
def test_speech_needs_a_text(tmp_path: Path, content: Any) -> None:
    assert refused(tmp_path, {"speak": stage("speech")}, content) == local(HibariPromptRenderer, " ")


def test_speech_of_an_answer_needs_no_text_of_the_jobs(tmp_path: Path) -> None:
    speak = {**stage("speech"), "inputs": {"think": "text"}}
    submitted(tmp_path, {"think": stage("chat"), "speak": speak}, [SOUND])


@pytest.mark.parametrize("endpoint", ["images", "videos"])
def test_a_picture_needs_a_description(tmp_path: Path, endpoint: str) -> None:
    assert refused(tmp_path, {"draw": stage(endpoint)}, [PICTURE]) == ("messages", "the description is empty")
    submitted(tmp_path, {"draw": stage(endpoint)}, "A cat.")
    submitted(tmp_path, {"draw": stage(endpoint)}, [TEXT, PICTURE])


@pytest.mark.parametrize("endpoint", ["images", "videos"])
def test_an_edit_needs_a_picture(tmp_path: Path, endpoint: str) -> None:
    edit = {"edit": stage(endpoint, needs_picture=True)}
    field, message = refused(tmp_path, edit, "A cat.")
    as_image = message.replace("send it as input_reference", "send it to /v1/images/edits")
    assert (field, as_image) == local(UpscalePromptRenderer, "A cat.")
    assert (as_image == message) == (endpoint == "images")
    submitted(tmp_path, edit, [TEXT, PICTURE])


def test_a_video_starts_from_one_picture(tmp_path: Path) -> None:
    field, message = refused(tmp_path, {"film": stage("videos")}, [PICTURE, TEXT, PICTURE])
    assert field == "messages.0.content.2"
    assert "one picture" in message
    assert len(submitted(tmp_path, {"edit": stage("images")}, [PICTURE, TEXT, PICTURE]).unstored) == 2


def test_a_chat_of_a_text_needs_one(tmp_path: Path) -> None:
    assert refused(tmp_path, {"ask": stage("chat", "remote_text")}, [SOUND]) == ("messages", "there is no text")


def test_responses_take_no_video(tmp_path: Path) -> None:
    found = refused(tmp_path, {"ask": stage("responses")}, [TEXT, samples.video_part(samples.video())])
    assert found == ("messages.0.content.1", "responses take no video")


def test_only_the_stages_that_a_job_runs_are_asked(tmp_path: Path) -> None:
    stages = {"listen": stage("transcriptions"), "ask": stage("chat")}
    path = tmp_path / "far.yaml"
    outputs = {"text": {"stage": "ask"}, "audio": {"stage": "speak"}}
    speak = {**stage("speech"), "inputs": {"listen": "text"}}
    config = {"name": "far", "version": "1", "accepts": ["text", "audio"], "stages": {**stages, "speak": speak}}
    path.write_text(yaml.safe_dump({**config, "outputs": outputs}, sort_keys=False), encoding="utf-8")
    pipelines = Pipelines([load_pipeline(path)])
    body = {"model": "far", "messages": [{"role": "user", "content": "Hi"}]}
    admit(parse({**body, "modalities": ["text"]}, Settings()), pipelines, Settings())
    with pytest.raises(InvalidRequest, match="no recording"):
        admit(parse({**body, "modalities": ["audio"]}, Settings()), pipelines, Settings())


def test_a_check_that_breaks_is_the_plug_ins_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_chat(stage: object, request: object) -> None:
        raise SystemExit("no")

    monkeypatch.setattr(request_checks, "check_chat", check_chat)
    with pytest.raises(PluginBroken, match="the check of remote_chat of far failed: SystemExit: no"):
        submitted(tmp_path, {"ask": stage("chat")}, "Hi")


def test_a_check_that_is_not_there_is_found_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from workers.runners.remote.declaration import REMOTE

    declared = replace(REMOTE.processors["remote_chat"], check="workers.runners.remote.request_checks:nothing")
    monkeypatch.setitem(REMOTE.processors, "remote_chat", declared)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no 'nothing'") as caught:
        submitted(tmp_path, {"ask": stage("chat")}, "Hi")
    assert str(caught.value.field).endswith("processor")
