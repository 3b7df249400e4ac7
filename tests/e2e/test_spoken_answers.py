"""What a whole system tells of speech: of an answer that cannot be spoken, and of what was heard, with its times."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from omni_jobs.client import Client
from omni_jobs.errors import InvalidRequest
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from tests.e2e.conftest import SHIPPED
from tests.oracles import samples

ECHO = {"kind": "echo", "processor": "echo", "produces": "text", "slots": 8, "time_limit_s": 60}
SILENCE = base64.b64encode(samples.wav(1.0)).decode("ascii")
SPEECHLESS = ("🎉🎉", "你好，世界", "...", "— — —")


def answers() -> dict[str, Any]:
    """Return the stages of ``voice`` behind its language model, before which a stage repeats the question."""
    voice = yaml.safe_load((SHIPPED / "voice.yaml").read_text(encoding="utf-8"))
    voice["stages"]["think"] = ECHO
    del voice["stages"]["listen"]
    voice["stages"]["acoustic"]["max_payload_bytes"] = 6_000_000  # some 6 s of speech
    return {**voice, "name": "answers", "accepts": ["text"]}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("spoken")
    configs = directory / "stage_configs"
    configs.mkdir()
    (configs / "answers.yaml").write_text(yaml.safe_dump(answers(), sort_keys=False), encoding="utf-8")
    (configs / "transcribe.yaml").write_bytes((SHIPPED / "transcribe.yaml").read_bytes())
    settings = Settings(data_dir=directory / "data", stage_configs=configs, spool_dir=directory / "spool")
    with EmbeddedStack(settings, pipelines=["answers", "transcribe"]) as stack, Client(stack.url) as found:
        yield found


def said(client: Client, text: str) -> JobView:
    messages = [{"role": "user", "content": text}]
    body = {"model": "answers", "messages": messages, "modalities": ["text", "audio"]}
    return client.wait(client.submit(body).id, timeout=120)


def codes(job: JobView) -> list[str]:
    return [warning.code for warning in job.warnings]


@pytest.mark.parametrize("text", SPEECHLESS)
def test_an_answer_that_cannot_be_spoken_is_told_in_text(client: Client, text: str) -> None:
    job = said(client, text)
    assert job.status is JobState.COMPLETED, job.error
    assert job.result is not None
    assert job.result["text"] == text
    assert "nothing_said" in codes(job)
    assert [artifact.media_type for artifact in job.artifacts] == ["audio/wav"]


def test_what_the_voice_leaves_out_is_named(client: Client) -> None:
    job = said(client, "The word 你好 means hello.")
    assert job.status is JobState.COMPLETED
    (warning,) = job.warnings
    assert warning.code == "left_out"
    assert "你好" in warning.message


def test_a_job_that_fails_behind_its_answer_shows_the_answer(client: Client) -> None:
    text = "One sentence after the other. " * 30
    job = said(client, text)
    assert job.status is JobState.FAILED
    assert job.result_so_far is not None
    assert job.result_so_far["text"] == text


def test_a_transcript_has_its_times_and_its_subtitles(client: Client) -> None:
    spoken = said(client, "Hello there, this works.")
    (artifact,) = spoken.artifacts
    sound = base64.b64encode(client.artifact(spoken, artifact.name)).decode("ascii")
    content = [{"type": "input_audio", "input_audio": {"data": sound}}]
    body = {
        "model": "transcribe",
        "messages": [{"role": "user", "content": content}],
        "stages": {"listen": {"subtitles": ["srt", "vtt"], "words": True}},
    }
    job = client.wait(client.submit(body).id, timeout=120)
    assert job.status is JobState.COMPLETED, job.error
    assert job.result is not None
    (transcript,) = job.result["transcripts"]["listen"]
    assert transcript["language"] == "en"
    assert 1 < transcript["duration_s"] < 6
    words = [word for segment in transcript["segments"] for word in segment["words"]]
    assert len(words) == 4
    files = {each.name: client.artifact(job, each.name).decode() for each in job.artifacts}
    assert sorted(files) == ["listen.srt", "listen.vtt"]
    assert files["listen.srt"].startswith("1\n00:00:0")
    assert files["listen.vtt"].startswith("WEBVTT")
    assert all("Hello there" in text for text in files.values())


def test_a_language_that_the_checkpoint_lacks_is_refused(client: Client) -> None:
    content = [{"type": "input_audio", "input_audio": {"data": SILENCE}}]
    messages = [{"role": "user", "content": content}]
    with pytest.raises(InvalidRequest) as caught:
        client.submit({"model": "transcribe", "messages": messages, "stages": {"listen": {"language": "de"}}})
    assert caught.value.field == "stages.listen.language"


def test_subtitles_of_silence_are_files(client: Client) -> None:
    content = [{"type": "input_audio", "input_audio": {"data": SILENCE}}]
    stages = {"listen": {"subtitles": ["srt", "vtt"]}}
    body = {"model": "transcribe", "messages": [{"role": "user", "content": content}], "stages": stages}
    job = client.wait(client.submit(body).id, timeout=120)
    assert job.status is JobState.COMPLETED, job.error
    files = {artifact.name: client.artifact(job, artifact.name) for artifact in job.artifacts}
    assert sorted(files) == ["listen.srt", "listen.vtt"]
    assert files["listen.vtt"].startswith(b"WEBVTT")
