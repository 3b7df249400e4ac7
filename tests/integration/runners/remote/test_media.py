"""Speech, transcriptions, images and videos: what is sent, what comes back, and what is refused."""

import asyncio
import base64
import io
import wave
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import ModelError, OmniJobsError, RemoteUnavailable
from omni_jobs.fetch.guard import Guard
from tests.remote_stages import Recorded, prompt, recording, remote_runner
from tests.services.openai_server import (
    Answer,
    Connection,
    OpenAIServer,
    Request,
    error_answer,
    json_answer,
)
from workers.runners.remote.prompt import RemoteFile

SPEECH = "POST /v1/audio/speech"
TRANSCRIPTIONS = "POST /v1/audio/transcriptions"
IMAGES = "POST /v1/images/generations"
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
MP4 = b"\0\0\0\x18ftypmp42" + b"\0" * 20
MP3 = b"ID3\x04" + b"\0" * 20


def wav(samples: "np.ndarray[Any, Any]", rate: int = 24_000, channels: int = 1, width: int = 2) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


STEREO = wav(np.array([[32767, 0], [-32768, -32768], [0, 16384]], "<i2"), channels=2)


# Speech.


async def test_speech_comes_in_the_format_of_the_job(openai_server: OpenAIServer) -> None:
    openai_server.answers[SPEECH] = [Answer(MP3, content_type="audio/mpeg")]
    asked = prompt("speech", "Hello.", voice="alloy", audio_format="mp3", parameters={"speed": 1.5})
    seen = Recorded()
    async with remote_runner(openai_server.url, "speech") as runner:
        output = await runner.run(asked, seen)
    assert (output.encoded["audio"].data, output.encoded["audio"].format) == (MP3, "mp3")
    assert (seen[-1].done, seen[-1].total, seen[-1].unit) == (len(MP3), len(MP3), "bytes")
    assert openai_server.requests[-1].json == {
        "model": "smol",
        "input": "Hello.",
        "voice": "alloy",
        "response_format": "mp3",
        "speed": 1.5,
    }


async def test_a_later_stage_gets_a_waveform(openai_server: OpenAIServer) -> None:
    openai_server.answers[SPEECH] = [Answer(STEREO, content_type="audio/wav")]
    async with remote_runner(openai_server.url, "speech") as runner:
        output = await runner.run(prompt("speech", audio_format="mp3", capture=True), Recorded())
    assert openai_server.requests[-1].json["response_format"] == "wav"
    assert output.encoded == {}  # its encoder makes the MP3 of the waveform
    assert output.values == {"sampling_rate": 24_000}
    waveform = output.multimodal_outputs["waveform"]
    assert waveform.dtype == np.float32
    assert waveform == pytest.approx([0.5, -1.0, 0.25], abs=1e-4)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(b"<html>", content_type="text/html"), "text/html"),
        (json_answer({"error": {"message": "no voice", "code": 404}}), "404: no voice"),
        (json_answer({"audio": "AAAA"}), "application/json, not audio"),
        (Answer(b"<html>", content_type="audio/wav"), "no wav"),
        (Answer(MP3, content_type="audio/wav"), "no wav"),
        (Answer(b"", content_type="audio/wav"), "no bytes"),
        (Answer(STEREO[:20], content_type="audio/wav"), "does not decode"),
        (Answer(wav(np.zeros(0, "<i2")), content_type="audio/wav"), "no samples"),
        (Answer(wav(np.zeros(9, "<i2"), rate=3), content_type="audio/wav"), "3 Hz"),
    ],
)
async def test_bytes_that_are_no_speech_are_refused(openai_server: OpenAIServer, answer: Answer, message: str) -> None:
    openai_server.answers[SPEECH] = [answer]
    async with remote_runner(openai_server.url, "speech") as runner:
        with pytest.raises(ModelError, match=message):
            await runner.run(prompt("speech", audio_format="wav", capture=True), Recorded())


# Transcriptions.


async def test_a_sound_is_transcribed(openai_server: OpenAIServer) -> None:
    openai_server.answers[TRANSCRIPTIONS] = [error_answer(503), json_answer({"text": "Hello. €", "usage": {}})]
    asked = prompt(
        "transcriptions",
        recordings=[recording(data=STEREO)],
        parameters={"language": "en", "temperature": 0.5},
    )
    async with remote_runner(openai_server.url, "transcriptions", wait_s=5) as runner:
        output = await runner.run(asked, Recorded())
    assert (output.text, output.finish_reason) == ("Hello. €", "stop")
    first, second = (request.form for request in openai_server.requests if request.method == "POST")
    assert first == second
    assert second["file"] == ("audio.wav", "audio/wav", STEREO)
    plain = {name: data.decode() for name, (_, _, data) in second.items() if name != "file"}
    assert plain == {"model": "smol", "response_format": "verbose_json", "language": "en", "temperature": "0.5"}


@pytest.mark.parametrize("body", [{}, {"text": None}, {"text": 7}, []])
async def test_a_transcription_of_another_type_is_refused(openai_server: OpenAIServer, body: Any) -> None:
    openai_server.answers[TRANSCRIPTIONS] = [json_answer(body)]
    async with remote_runner(openai_server.url, "transcriptions") as runner:
        with pytest.raises(ModelError, match="cannot be used"):
            await runner.run(prompt("transcriptions", recordings=[recording()]), Recorded())


# Images.


async def test_a_picture_is_made(openai_server: OpenAIServer) -> None:
    openai_server.answers[IMAGES] = [json_answer({"created": 1, "data": [{"b64_json": _base64(PNG)}]})]
    async with remote_runner(openai_server.url, "images") as runner:
        output = await runner.run(prompt("images", "A cat.", parameters={"size": "64x64", "n": 1}), Recorded())
    assert (output.encoded["image"].data, output.encoded["image"].format) == (PNG, "png")
    assert openai_server.requests[-1].json == {
        "model": "smol",
        "prompt": "A cat.",
        "n": 1,
        "response_format": "b64_json",
        "seed": 7,
        "size": "64x64",
    }


async def test_a_picture_is_edited(openai_server: OpenAIServer) -> None:
    openai_server.answers["POST /v1/images/edits"] = [json_answer({"data": [{"b64_json": _base64(PNG)}]})]
    async with remote_runner(openai_server.url, "images", extra_body={"response_format": None}) as runner:
        await runner.run(prompt("images", files=[RemoteFile("image.png", "image/png", PNG)]), Recorded())
    form = openai_server.requests[-1].form
    assert form["image"] == ("image.png", "image/png", PNG)
    assert "response_format" not in form


@pytest.mark.parametrize("relative", [True, False])
async def test_a_picture_on_the_server_itself_is_fetched(openai_server: OpenAIServer, relative: bool) -> None:
    path = "/files/cat.png"
    url = path if relative else openai_server.url.removesuffix("/v1") + path
    openai_server.answers[IMAGES] = [json_answer({"data": [{"url": url}]})]
    openai_server.answers[f"GET {path}"] = [error_answer(503), Answer(PNG, content_type="image/png")]
    async with remote_runner(openai_server.url, "images", wait_s=5) as runner:
        output = await runner.run(prompt("images"), Recorded())
    assert output.encoded["image"].data == PNG


OTHER_PLACES: dict[str, Callable[[OpenAIServer], str]] = {
    "another host": lambda server: "https://example.org/cat.png",
    "another port": lambda server: f"http://127.0.0.1:{server.port + 1}/cat.png",
    "another scheme": lambda server: f"https://127.0.0.1:{server.port}/cat.png",
    "another spelling": lambda server: f"http://localhost:{server.port}/cat.png",
    "a number for a host": lambda server: f"http://2130706433:{server.port}/cat.png",
    "a user": lambda server: f"http://me@127.0.0.1:{server.port}/cat.png",
    "a host after a user": lambda server: f"http://127.0.0.1:{server.port}@169.254.169.254/latest",
    "a private address": lambda server: "http://169.254.169.254/latest/meta-data/",
    "no scheme": lambda server: "//169.254.169.254/latest",
    "a file": lambda server: "file:///etc/passwd",
    "no port": lambda server: "http://127.0.0.1:port/",
    "a new line": lambda server: f"http://127.0.0.1:{server.port}/a\r\nX: y",
}


@pytest.mark.parametrize("place", OTHER_PLACES)
async def test_a_picture_elsewhere_is_not_fetched(openai_server: OpenAIServer, place: str) -> None:
    openai_server.answers[IMAGES] = [json_answer({"data": [{"url": OTHER_PLACES[place](openai_server)}]})]
    async with remote_runner(openai_server.url, "images") as runner:
        with pytest.raises(ModelError, match="not on the server itself"):
            await runner.run(prompt("images"), Recorded())
    assert openai_server.paths("GET") == ["/v1/models"]


def guard_of(port: int) -> Guard:
    """A guard that takes loopback for the internet."""
    return Guard(ports=frozenset({port}), networks=(IPv4Network("127.0.0.0/8"),))


async def test_a_picture_elsewhere_is_fetched_where_the_settings_allow_it(openai_server: OpenAIServer) -> None:
    """Through the guarded connection, and without the server's key; a host that is busy is asked again."""
    async with OpenAIServer() as other:
        other.answers["GET /cat.png?sig=1"] = [error_answer(503), Answer(PNG, content_type="image/png")]
        openai_server.answers[IMAGES] = [
            json_answer({"data": [{"url": f"http://127.0.0.1:{other.port}/cat.png?sig=1"}]})
        ]
        async with remote_runner(openai_server.url, "images", guard_of(other.port), wait_s=5, tries=2) as runner:
            output = await runner.run(prompt("images"), Recorded())
    assert output.encoded["image"].data == PNG
    assert [request.headers.get("authorization") for request in other.requests] == [None, None]


NOT_GUARDED = {
    "http://169.254.169.254/latest/meta-data/": "another port",
    "http://localhost:PORT@127.0.0.1/": "user name",
    "file:///etc/passwd": "neither http",
    "http://127.0.0.1:PORT/none": "404",
    "http://127.0.0.1:PORT/moved": "redirects",
    "http://127.0.0.1:PORT/large": "more than 4096 bytes",
}


@pytest.mark.parametrize("url", NOT_GUARDED)
async def test_a_picture_elsewhere_that_does_not_pass(openai_server: OpenAIServer, url: str) -> None:
    async with OpenAIServer() as other:
        other.answers["GET /none"] = [error_answer(404)]
        other.answers["GET /moved"] = [Answer(b"", status=302, headers={"Location": "/cat.png"})]
        other.answers["GET /large"] = [Answer(PNG * 1000)]
        openai_server.answers[IMAGES] = [json_answer({"data": [{"url": url.replace("PORT", str(other.port))}]})]
        guard = guard_of(other.port)
        async with remote_runner(openai_server.url, "images", guard, max_answer_bytes=4096) as runner:
            with pytest.raises(ModelError, match=NOT_GUARDED[url]):
                await runner.run(prompt("images"), Recorded())


async def test_a_path_of_two_slashes_stays_on_the_server(openai_server: OpenAIServer) -> None:
    origin = openai_server.url.removesuffix("/v1")
    openai_server.answers[IMAGES] = [json_answer({"data": [{"url": f"{origin}//169.254.169.254/latest"}]})]
    openai_server.answers["GET //169.254.169.254/latest"] = [Answer(PNG)]
    async with remote_runner(openai_server.url, "images") as runner:
        assert (await runner.run(prompt("images"), Recorded())).encoded["image"].data == PNG


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"data": []}, "data"),
        ({"data": [{}]}, "neither"),
        ({"data": [{"b64_json": "not base64!"}]}, "not base64"),
        ({"data": [{"b64_json": "ä"}]}, "not base64"),
        ({"data": [{"b64_json": ""}]}, "no bytes"),
        ({"data": [{"b64_json": base64.b64encode(b"GIF89a").decode()}]}, "none of png"),
        ({"data": [{"b64_json": 7}]}, "b64_json"),
    ],
)
async def test_bytes_that_are_no_picture_are_refused(openai_server: OpenAIServer, body: Any, message: str) -> None:
    openai_server.answers[IMAGES] = [json_answer(body)]
    async with remote_runner(openai_server.url, "images") as runner:
        with pytest.raises(ModelError, match=message):
            await runner.run(prompt("images"), Recorded())


async def test_pictures_are_not_decoded_for_later_stages(openai_server: OpenAIServer) -> None:
    async with remote_runner(openai_server.url, "images") as runner:
        with pytest.raises(ModelError, match="last"):
            await runner.run(prompt("images", capture=True), Recorded())


# Videos.


def video(status: str, **more: Any) -> Answer:
    return json_answer({"id": "video_1", "object": "video", "status": status, **more}, openai_poll_after_ms="1")


async def test_a_video_is_created_polled_fetched_and_deleted(openai_server: OpenAIServer) -> None:
    deleted = asyncio.Event()

    async def delete(request: Request, connection: Connection) -> None:
        await video("deleted")(request, connection)
        deleted.set()

    openai_server.answers["POST /v1/videos"] = [video("queued")]
    openai_server.answers["GET /v1/videos/video_1"] = [
        video("in_progress", progress=10),
        error_answer(503),
        video("in_progress", progress=60.5, url="http://169.254.169.254/"),
        video("completed", progress=100),
    ]
    openai_server.answers["GET /v1/videos/video_1/content"] = [Answer(MP4, content_type="video/mp4")]
    openai_server.answers["DELETE /v1/videos/video_1"] = [delete]
    seen = Recorded()
    asked = prompt(
        "videos",
        "A cat walks.",
        parameters={"seconds": 4, "size": "832x480"},
        files=[RemoteFile("image.png", "image/png", PNG)],
    )
    async with remote_runner(openai_server.url, "videos", wait_s=5) as runner:
        output = await runner.run(asked, seen)
        await asyncio.wait_for(deleted.wait(), 60)
    assert (output.encoded["video"].data, output.encoded["video"].format) == (MP4, "mp4")
    form = openai_server.requests[1].form
    assert form.pop("input_reference") == ("image.png", "image/png", PNG)
    assert {name: data.decode() for name, (_, _, data) in form.items()} == {
        "model": "smol",
        "prompt": "A cat walks.",
        "seed": "7",
        "seconds": "4",
        "size": "832x480",
    }
    done = [each.done for each in seen if each.unit == "percent"]
    assert {0, 10, 60, 100} <= set(done)
    assert seen[1].waiting  # queued on the server


@pytest.mark.parametrize("setback", [502, 429])
async def test_a_video_that_is_being_made_is_kept_though_its_request_was_answered_at_the_last_try(
    openai_server: OpenAIServer, setback: int
) -> None:
    busy = error_answer(429)
    openai_server.answers["POST /v1/videos"] = [replace(busy, headers={"Retry-After": "1.5"}), video("queued")]
    openai_server.answers["GET /v1/videos/video_1"] = [
        video("in_progress", progress=10),
        video("in_progress", progress=30),
        error_answer(setback),
        video("completed", progress=100),
    ]
    openai_server.answers["GET /v1/videos/video_1/content"] = [Answer(MP4, content_type="video/mp4")]
    async with remote_runner(openai_server.url, "videos", tries=3, wait_s=1.5, longest_pause_s=2) as runner:
        output = await runner.run(prompt("videos"), Recorded())
    assert output.encoded["video"].data == MP4


async def test_a_cancelled_video_is_deleted(openai_server: OpenAIServer) -> None:
    polled, deleted = asyncio.Event(), asyncio.Event()

    async def poll(request: Request, connection: Connection) -> None:
        await video("in_progress", progress=5)(request, connection)
        polled.set()

    async def delete(request: Request, connection: Connection) -> None:
        deleted.set()
        await video("deleted")(request, connection)

    openai_server.answers["POST /v1/videos"] = [video("in_progress")]
    openai_server.answers["GET /v1/videos/video_1"] = [poll]
    openai_server.answers["DELETE /v1/videos/video_1"] = [delete]
    async with remote_runner(openai_server.url, "videos") as runner:
        run = asyncio.create_task(runner.run(prompt("videos"), Recorded()))
        await polled.wait()
        run.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await run
            await deleted.wait()


@pytest.mark.parametrize(
    ("polled", "content", "kind", "message"),
    [
        (video("failed", error={"code": "moderation", "message": "no cats"}), None, ModelError, "no cats"),
        (video("failed", error={"code": "server_error", "message": "oh"}), None, RemoteUnavailable, "oh"),
        (video("failed"), None, ModelError, "failed"),
        (video("melted"), None, ModelError, "'melted'"),
        (error_answer(404), None, RemoteUnavailable, "no longer has"),
        (json_answer({"id": "video_1"}), None, ModelError, "status"),
        (video("completed"), Answer(b"<html>"), ModelError, "none of mp4"),
        (video("completed"), Answer(b"", 302, headers={"Location": "http://169.254.169.254/"}), ModelError, "redirect"),
        (video("completed"), error_answer(404), RemoteUnavailable, "no longer has"),
    ],
)
async def test_a_video_that_comes_to_nothing(
    openai_server: OpenAIServer, polled: Answer, content: Answer | None, kind: type[OmniJobsError], message: str
) -> None:
    openai_server.answers["POST /v1/videos"] = [video("queued")]
    openai_server.answers["GET /v1/videos/video_1"] = [polled]
    if content is not None:
        openai_server.answers["GET /v1/videos/video_1/content"] = [content]
    async with remote_runner(openai_server.url, "videos") as runner:
        with pytest.raises(kind, match=message):
            await runner.run(prompt("videos"), Recorded())
    assert openai_server.paths("DELETE") == ["/v1/videos/video_1"]


@pytest.mark.parametrize("name", ["", "../models", "a/b", "..", "a?b", "a" * 300, 7, None])
async def test_an_id_that_is_no_name_is_refused(openai_server: OpenAIServer, name: Any) -> None:
    openai_server.answers["POST /v1/videos"] = [json_answer({"id": name, "status": "queued"})]
    async with remote_runner(openai_server.url, "videos") as runner:
        with pytest.raises(ModelError, match="id"):
            await runner.run(prompt("videos"), Recorded())
    assert openai_server.paths("GET") == ["/v1/models"]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_a_url_that_is_too_long_is_refused(openai_server: OpenAIServer) -> None:
    openai_server.answers["POST /v1/images/generations"] = [json_answer({"data": [{"url": "/" + "a" * 70_000}]})]
    async with remote_runner(openai_server.url, "images") as runner:
        with pytest.raises(ModelError, match="a URL that is none: InvalidURL") as caught:
            await runner.run(prompt("images"), Recorded())
    assert len(str(caught.value)) < 1000
