"""What a whole system tells of speech: of an answer that cannot be spoken, and of what was heard, with its times.

It is heard by a stage of Whisper, and by a remote stage before a server that runs the same model. It is spoken by a
voice, and by a remote stage before the system's own speech. All of it goes through OpenAI's client as well.
"""

import base64
import socket
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import yaml
from openai.types.audio import TranscriptionVerbose

from omni_jobs.client import Client
from omni_jobs.errors import InvalidRequest
from omni_jobs.servers import Server
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from tests.e2e.conftest import SHIPPED
from tests.integration.openai.stock import Stock, stock_client
from tests.oracles import samples
from tests.oracles.word_errors import words_of
from tests.services.whisper_server import MODEL, WhisperServer, whisper_server
from tests.stage_configs import remote_stage

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


def remote_pipeline(name: str, output: str, stage: dict[str, Any]) -> dict[str, Any]:
    """Return a pipeline of one remote stage ``listen`` or ``speak``."""
    step = "listen" if output == "text" else "speak"
    return {
        "name": name, "version": "1", "accepts": ["text", "audio"], "voices": ["heart"], "stages": {step: stage},
        "outputs": {output: {"stage": step}},
    }  # fmt: skip


def remote_pipelines() -> list[dict[str, Any]]:
    """Return two that hear with a server of Whisper, one without times, and one that speaks with this system's API."""
    listen = remote_stage("transcriptions", "remote_transcription", "text", MODEL)
    speak = remote_stage("speech", "remote_text", "waveform", "answers", server="own")
    plain = {**listen, "engine": {**listen["engine"], "extra_body": {"response_format": "json"}}}
    return [
        remote_pipeline("remote_transcribe", "text", listen),
        remote_pipeline("remote_plain", "text", plain),
        remote_pipeline("remote_speech", "audio", speak),
    ]


@pytest.fixture(scope="module")
def whisper() -> Iterator[WhisperServer]:
    with whisper_server() as server:
        yield server


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, whisper: WhisperServer) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("spoken")
    configs = directory / "stage_configs"
    configs.mkdir()
    for pipeline in (answers(), *remote_pipelines()):
        path = configs / f"{pipeline['name']}.yaml"
        path.write_text(yaml.safe_dump(pipeline, sort_keys=False), encoding="utf-8")
    (configs / "transcribe.yaml").write_bytes((SHIPPED / "transcribe.yaml").read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = Settings(
        data_dir=directory / "data",
        stage_configs=configs,
        spool_dir=directory / "spool",
        servers={"local": Server(url=whisper.url), "own": Server(url=f"http://127.0.0.1:{port}/v1")},
    )
    pipelines = ["answers", "transcribe", "remote_transcribe", "remote_plain", "remote_speech"]
    with EmbeddedStack(settings, pipelines=pipelines, port=port) as stack, Client(stack.url) as found:
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
    made, heard = spoken.stages[-1].usage, job.stages[0].usage
    assert made is not None
    assert heard is not None
    assert made.sound_s == pytest.approx(transcript["duration_s"], abs=0.001)
    assert heard.heard_s == pytest.approx(transcript["duration_s"], abs=0.001)
    for each in (made, heard):  # models on the CPU, which is one device
        assert 0 < each.device_s <= each.worker_s
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


# Remote transcriptions.


def transcribed(client: Client, pipeline: str, recordings: list[str], **parameters: Any) -> JobView:
    parts = [{"type": "input_audio", "input_audio": {"data": each}} for each in recordings]
    content = [*parts[:1], {"type": "text", "text": "And then:"}, *parts[1:]]
    messages = [{"role": "user", "content": content}]
    body = {"model": pipeline, "messages": messages, "stages": {"listen": parameters}}
    job = client.wait(client.submit(body).id, timeout=120)
    assert job.status is JobState.COMPLETED, job.error
    return job


def seconds(cue: str) -> float:
    hours, minutes, rest = cue.replace(",", ".").split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


def test_a_remote_stage_hears_every_recording_as_the_local_one_does(client: Client, whisper: WhisperServer) -> None:
    recordings, lengths = [], []
    for text in ("Hello there, this works.", "The baker gets up early."):
        spoken = said(client, text)
        sound = client.artifact(spoken, spoken.artifacts[0].name)
        recordings.append(base64.b64encode(sound).decode("ascii"))
        lengths.append((len(sound) - 44) / 2 / 24_000)
    recordings.insert(1, SILENCE)
    asked = {"subtitles": ["srt", "vtt"], "words": True}
    local = transcribed(client, "transcribe", recordings, **asked)
    remote = transcribed(client, "remote_transcribe", recordings, **asked)
    assert remote.result is not None
    assert local.result is not None
    lines = remote.result["text"].split("\n")
    assert lines == local.result["text"].split("\n")
    assert lines[1] == ""
    assert "baker" in lines[2]
    heard, expected = (job.result["transcripts"]["listen"] for job in (remote, local) if job.result is not None)
    for one, other in zip(heard, expected, strict=True):
        assert {name: one[name] for name in ("media", "text", "duration_s")} == {
            name: other[name] for name in ("media", "text", "duration_s")
        }
        assert "".join(each["text"] for each in one["segments"]) == one["text"]
        words = [[word["text"] for segment in each["segments"] for word in segment["words"]] for each in (one, other)]
        assert words[0] == words[1]
    files = {each.name: client.artifact(remote, each.name).decode() for each in remote.artifacts}
    assert sorted(files) == ["listen.srt", "listen.vtt"]
    begins = [seconds(line.split(" --> ")[0]) for line in files["listen.srt"].splitlines() if "-->" in line]
    assert begins[0] < lengths[0]
    assert begins[-1] >= lengths[0] + 1.0  # behind the first recording and the silence
    assert files["listen.vtt"].count("-->") == len(begins) == 2
    assert len(whisper.heard) == 3


def test_a_job_without_a_recording_is_refused_in_the_same_words(client: Client) -> None:
    refusals = []
    for pipeline in ("transcribe", "remote_transcribe"):
        with pytest.raises(InvalidRequest) as caught:
            client.submit({"model": pipeline, "messages": [{"role": "user", "content": "Listen!"}]})
        refusals.append((caught.value.field, caught.value.message))
    assert refusals[0] == refusals[1]
    assert refusals[0][0] == "messages"


# OpenAI's client.

SENTENCE = "The baker gets up early in the morning."


@pytest.fixture
def stock(client: Client) -> Iterator[Stock]:
    with stock_client(client.base_url) as found:
        yield found


@pytest.mark.parametrize(
    ("voice", "listener"), [("answers", "transcribe"), ("remote_speech", "remote_transcribe")], ids=["local", "remote"]
)
def test_what_openai_s_client_lets_speak_it_hears_again(stock: Stock, voice: str, listener: str) -> None:
    spoken = stock.client.audio.speech.create(model=voice, input=SENTENCE, voice="heart", speed=0.9)
    assert spoken.response.headers["content-type"] == "audio/mpeg"
    hear = stock.client.audio.transcriptions.create
    file = ("spoken", spoken.content)
    assert words_of(hear(model=listener, file=file).text) == words_of(SENTENCE)
    verbose = hear(
        model=listener,
        file=file,
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        language="en",
        prompt="A baker.",
    )
    TranscriptionVerbose.model_validate(verbose.to_dict(), strict=True)
    assert verbose.language == "en"
    assert verbose.segments is not None
    assert words_of("".join(segment.text for segment in verbose.segments)) == words_of(SENTENCE)
    assert verbose.words is not None
    assert [word.word for word in verbose.words] == SENTENCE.split()
    times = [time for word in verbose.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0.0 <= times[0] < times[-1] <= verbose.duration
    assert SENTENCE in hear(model=listener, file=file, response_format="srt")
    *deltas, done = hear(model=listener, file=file, stream=True)
    assert done.type == "transcript.text.done"
    assert "".join(delta.delta for delta in deltas if delta.type == "transcript.text.delta") == done.text


def test_a_speed_makes_the_voice_faster(stock: Stock) -> None:
    sizes = [
        len(stock.client.audio.speech.create(model="answers", input=SENTENCE, voice="heart", speed=speed,
                                             response_format="pcm", extra_body={"seed": 1}).content)
        for speed in (0.8, 1.6)
    ]  # fmt: skip
    assert sizes[0] == pytest.approx(2 * sizes[1], rel=0.2)


def test_a_language_that_the_checkpoint_lacks_is_the_client_s_parameter(stock: Stock) -> None:
    hear = stock.client.audio.transcriptions.create
    sound = base64.b64decode(SILENCE)
    error = stock.error(openai.BadRequestError, lambda: hear(model="transcribe", file=sound, language="de"))
    assert error.param == "language"
    assert hear(model="transcribe", file=sound, response_format="vtt") == "WEBVTT\n"


def test_a_server_that_tells_no_times_gives_text_and_no_subtitles(stock: Stock) -> None:
    spoken = stock.client.audio.speech.create(model="answers", input=SENTENCE, voice="heart").content
    hear = stock.client.audio.transcriptions.create
    assert words_of(hear(model="remote_plain", file=spoken).text) == words_of(SENTENCE)
    verbose = hear(model="remote_plain", file=spoken, response_format="verbose_json")
    assert (words_of(verbose.text), verbose.segments) == (words_of(SENTENCE), [])
    subtitles = {"model": "remote_plain", "file": spoken, "response_format": "srt"}
    error = stock.error(openai.BadRequestError, lambda: hear(**subtitles))  # type: ignore[arg-type]
    assert (error.param, "job_id" in error.body) == ("response_format", True)  # type: ignore[operator]
