"""Speech with the stock client: real workers make the sound, and the client gets its bytes."""

import io
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import openai
import pytest
import soundfile

from tests.event_reader import LATE_S
from tests.integration.api_server import ApiServer
from tests.integration.openai.stock import Stock

TWO_SECONDS = "x" * 40


def speak(stock: Stock, text: str = TWO_SECONDS, **more: Any) -> Any:
    return stock.client.audio.speech.create(**{"model": "echo_media", "voice": "nova", "input": text, **more})


def duration_s(sound: bytes) -> float:
    samples, rate = soundfile.read(io.BytesIO(sound))
    return float(len(samples) / rate)


@pytest.mark.parametrize(
    ("format", "media_type", "begins"),
    [
        ("mp3", "audio/mpeg", (b"ID3", b"\xff\xfb", b"\xff\xf3")),
        ("opus", "audio/ogg", b"OggS"),
        ("aac", "audio/aac", (b"\xff\xf1", b"\xff\xf9")),
        ("flac", "audio/flac", b"fLaC"),
        ("wav", "audio/wav", b"RIFF"),
        ("pcm", "audio/pcm", b""),
    ],
)
def test_a_text_is_spoken(stock: Stock, format: Any, media_type: str, begins: Any) -> None:
    answer = speak(stock, response_format=format)
    assert answer.response.headers["content-type"] == media_type
    assert answer.content.startswith(begins)
    assert int(answer.response.headers["content-length"]) == len(answer.content)
    if format in ("wav", "flac"):
        assert duration_s(answer.content) == pytest.approx(2.0, abs=0.01)


def test_the_default_is_mp3_in_the_first_voice(stock: Stock, echo_media: ApiServer) -> None:
    answer = stock.client.post(
        "/audio/speech", body={"model": "echo_media", "input": TWO_SECONDS}, cast_to=openai.HttpxBinaryResponseContent
    )
    job = echo_media.http.get(f"/v1/jobs/{answer.response.headers['x-job-id']}").json()
    assert (job["status"], [each["name"] for each in job["artifacts"]]) == ("completed", ["audio.mp3"])
    assert answer.content == echo_media.http.get(f"/v1/jobs/{job['id']}/artifacts/audio.mp3").content


def test_the_sound_streams_to_a_file(stock: Stock, tmp_path: Path) -> None:
    stages = {"sound": {"seconds": 60}}
    spoken = stock.client.audio.speech.with_streaming_response.create(
        model="echo_media", input="x", voice="onyx", response_format="wav", extra_body={"stages": stages, "seed": 3}
    )
    with spoken as answer:
        answer.stream_to_file(tmp_path / "spoken.wav")
    assert duration_s((tmp_path / "spoken.wav").read_bytes()) == pytest.approx(60, abs=0.01)


def test_a_speed_is_the_stage_s(stock: Stock) -> None:
    fast = speak(stock, speed=2, response_format="wav", voice={"id": "nova"}).content
    assert duration_s(fast) == pytest.approx(1.0, abs=0.01)
    twice = speak(stock, speed=2, response_format="wav", extra_body={"stages": {"sound": {"speed": 2.0}}}).content
    assert twice == fast


def test_the_sound_comes_in_events(stock: Stock) -> None:
    whole = speak(stock, response_format="wav").content
    text = speak(stock, response_format="wav", stream_format="sse")
    assert text.response.headers["content-type"].startswith("text/event-stream")
    *deltas, done = [json.loads(line[6:]) for line in text.text.splitlines() if line.startswith("data: ")]
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(b64decode(delta["audio"], validate=True) for delta in deltas) == whole
    assert done == {"type": "speech.audio.done", "usage": None}


def test_a_key_gives_the_same_sound_again(stock: Stock) -> None:
    headers = {"Idempotency-Key": "speech-1"}
    first = speak(stock, extra_headers=headers)
    again = speak(stock, extra_headers=headers)
    assert again.response.headers["x-job-id"] == first.response.headers["x-job-id"]
    assert again.content == first.content
    events = speak(stock, extra_headers=headers, stream_format="sse")
    assert events.response.headers["x-job-id"] == first.response.headers["x-job-id"]
    error = stock.error(openai.BadRequestError, lambda: speak(stock, "Another", extra_headers=headers))
    assert error.code == "idempotency_key_reused"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": 7}, "input"),
        ({"input": "x" * 12_001}, "input"),
        ({"voice": "nobody"}, "voice"),
        ({"voice": {"id": 7}}, "voice"),
        ({"voice": ["nova"]}, "voice"),
        ({"response_format": "midi"}, "response_format"),
        ({"response_format": 7}, "response_format"),
        ({"speed": 9}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"speed": 2, "extra_body": {"stages": {"sound": {"speed": 3.0}}}}, "speed"),
        ({"instructions": "Whisper it."}, "instructions"),
        ({"stream_format": "websocket"}, "stream_format"),
        ({"extra_body": {"seed": -1}}, "seed"),
        ({"extra_body": {"task_type": "CustomVoice"}}, "task_type"),
        ({"extra_body": {"stages": {"sound": {"pitch": 1}}}}, "stages.sound.pitch"),
    ],
)
def test_what_is_refused_is_a_bad_request_that_names_it(
    stock: Stock, echo_media: ApiServer, more: dict[str, Any], param: str
) -> None:
    before = newest(echo_media)
    error = stock.error(openai.BadRequestError, lambda: speak(stock, **{"text": more.pop("input", "x"), **more}))
    assert (error.code, error.type, error.param) == ("invalid_request", "invalid_request_error", param)
    assert newest(echo_media) == before


def newest(api: ApiServer) -> str:
    return str(api.http.get("/v1/jobs", params={"limit": 1}).json()["jobs"])


def test_an_unknown_model_is_not_found(stock: Stock) -> None:
    assert stock.error(openai.NotFoundError, lambda: speak(stock, model="tts-1")).param == "model"


def test_a_job_that_goes_on_is_told(stock: Stock, echo_media: ApiServer) -> None:
    waits = {"x-stainless-read-timeout": "1"}
    more: dict[str, Any] = {"extra_body": {"stages": {"sound": {"delay_s": 600}}}, "extra_headers": waits}
    error = stock.error(openai.InternalServerError, lambda: speak(stock, **more))
    assert (error.status_code, error.code) == (504, "still_running")
    job = error.response.headers["location"]
    assert echo_media.http.get(job).json()["status"] in ("queued", "in_progress")
    echo_media.http.post(f"{job}/cancel", timeout=LATE_S)
