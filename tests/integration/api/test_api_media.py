"""Media over HTTP: hostile ones are refused at once, and no other request waits for them."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from tests import hostile
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.integration.media.test_media_wall import SLOW, UNBOUNDED, cpu_ticks, decoders_of, wait_for
from tests.oracles import samples


def settings_of(valkey_server: str, directory: Path, checkpoint: Path, **others: Any) -> Settings:
    settings = server_settings(directory, valkey_server, models={"qwen2_5_omni": checkpoint}, **others)
    Database(settings.resolved_database_url).migrate()
    return settings


@pytest.fixture(scope="module")
def api(valkey_server: str, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[ApiServer]:
    with serve(settings_of(valkey_server, tmp_path_factory.mktemp("api"), tiny_checkpoint)) as server:
        yield server


@pytest.fixture
def busy(valkey_server: str, tmp_path: Path, tiny_checkpoint: Path) -> Iterator[ApiServer]:
    """One decoder, no place to wait for it, and limits that stop nothing."""
    settings = settings_of(
        valkey_server, tmp_path, tiny_checkpoint, decoders=1, decoders_waiting=0, probe_limit_s=600, **UNBOUNDED
    )
    with serve(settings) as server:
        yield server


def submit(api: ApiServer, *parts: dict[str, Any]) -> httpx2.Response:
    return api.http.post("/v1/jobs", json=body(*parts))


def body(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"model": "qwen2_5_omni", "messages": [{"role": "user", "content": list(parts)}]}


IMAGE = "messages.0.content.0.image_url.url"
AUDIO = "messages.0.content.0.input_audio.data"
VIDEO = "messages.0.content.0.video_url.url"
BOMBS: dict[str, tuple[Callable[[], dict[str, Any]], int, str, str]] = {
    "mp4 index": (lambda: samples.video_part(hostile.mp4_index_bomb()), 422, VIDEO, "claims 85000000 frames"),
    "mp4 fragment": (lambda: samples.video_part(hostile.mp4_fragment_bomb()), 413, VIDEO, "80000000 frames"),
    "avi index": (lambda: samples.video_part(hostile.avi_index_bomb()), 422, VIDEO, "cut off"),
    "jpeg scans": (lambda: samples.image_part(hostile.jpeg_scan_bomb()), 413, IMAGE, "more than 20 scans"),
    "flac": (lambda: samples.audio_part(hostile.flac_silence()), 413, AUDIO, "1840128000 samples"),
    "flac of few samples": (
        lambda: samples.audio_part(hostile.flac_silence(rate=16_000, channels=1)),
        422,
        "messages.0.content.0",
        "hears at most",
    ),
    "ogg": (lambda: samples.audio_part(hostile.ogg_silence()), 422, "messages.0.content.0", "hears at most"),
    "mp3": (lambda: samples.audio_part(hostile.mp3_silence()), 422, "messages.0.content.0", "hears at most"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_the_requests_error(api: ApiServer, name: str) -> None:
    make, status, field, complaint = BOMBS[name]
    answer = submit(api, make())
    error = answer.json()["error"]
    assert (answer.status_code, error["field"], error["retryable"]) == (status, field, False), answer.text
    assert complaint in error["message"]


def test_a_length_that_no_upload_could_hold_is_the_files(api: ApiServer) -> None:
    assert submit(api, samples.audio_part(hostile.wav_length_lie())).status_code == 202


def test_the_decoders_have_bounds_on_what_they_took(api: ApiServer) -> None:
    for make, *_ in BOMBS.values():
        submit(api, make())
    submit(api, samples.audio_part(hostile.wav_length_lie()))
    for pid in decoders_of(api.services.wall):
        peak = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line)
        assert int(peak.split()[1]) < 600 << 10, peak


def test_what_the_model_hears_is_asked_before_anything_is_decoded(api: ApiServer) -> None:
    """This FLAC's header says 599 s; behind it stands nothing that could be decoded."""
    data = bytearray(hostile.flac_silence(rate=16_000, channels=1))
    data[100:] = os.urandom(len(data) - 100)
    error = submit(api, samples.image_part(samples.image()), samples.audio_part(bytes(data))).json()["error"]
    assert (error["field"], "hears at most" in error["message"]) == ("messages.0.content.1", True)


def test_the_prompts_length_is_asked_before_anything_is_decoded(api: ApiServer) -> None:
    """32 pictures of 16,384 tokens each by their headers, and no pixel behind those."""
    whole = hostile.png_noise(2_000)
    cut = samples.image_part(whole[:20_000])
    error = submit(api, *[cut] * 32).json()["error"]
    assert (error["field"], "the model takes at most" in error["message"]) == ("messages", True), error


def test_what_is_cheap_is_asked_before_any_medium(api: ApiServer) -> None:
    broken = samples.image_part(b"no picture")
    answer = api.http.post(
        "/v1/jobs",
        json={
            "model": "qwen2_5_omni",
            "messages": [{"role": "user", "content": [broken]}, {"role": "user", "content": ""}],
        },
    )
    assert answer.json()["error"]["field"] == "messages.1.content"


def test_text_does_not_wait_for_media(busy: ApiServer) -> None:
    busy.http.post("/v1/jobs", json=body(samples.image_part(samples.image()))).raise_for_status()
    [decoder] = decoders_of(busy.services.wall)
    before = cpu_ticks(decoder)
    slow = samples.image_part(SLOW)
    answers: list[httpx2.Response] = []

    def send() -> None:
        with httpx2.Client(base_url=busy.http.base_url, trust_env=False, timeout=120) as client:
            answers.append(client.post("/v1/jobs", json=body(slow)))

    thread = threading.Thread(target=send)
    thread.start()
    wait_for(lambda: cpu_ticks(decoder) > before + 10)

    # Text of any size goes on, alone and in a bulk.
    large = json.dumps(body({"type": "text", "text": "Hello"})) + " " * (20 << 10)
    as_json = {"Content-Type": "application/json"}
    assert busy.http.post("/v1/jobs", content=large, headers=as_json).status_code == 202
    bulk = busy.http.post("/v1/jobs/bulk", content=large, headers={"Content-Type": "application/jsonl"})
    assert json.loads(bulk.text.splitlines()[0])["created"] is True

    # Media are refused, with Retry-After.
    answer = busy.http.post("/v1/jobs", json=body(samples.image_part(samples.image())))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["retryable"]) == (503, "decoders_unavailable", True)
    assert int(answer.headers["Retry-After"]) >= 1

    # The media of a bulk wait, also in a bulk of one line.
    line = json.dumps(body(samples.image_part(samples.image())))
    bulks: list[httpx2.Response] = []

    def send_bulk() -> None:
        with httpx2.Client(base_url=busy.http.base_url, trust_env=False, timeout=120) as client:
            bulks.append(client.post("/v1/jobs/bulk", content=line, headers={"Content-Type": "application/jsonl"}))

    waiting = threading.Thread(target=send_bulk)
    waiting.start()
    lane = busy.services.intake._admissions._lanes._media
    wait_for(lambda: lane.statistics().tasks_waiting == 1)

    os.kill(decoder, signal.SIGABRT)
    thread.join(60)
    waiting.join(60)
    assert json.loads(bulks[0].text.splitlines()[0])["created"] is True
    error = answers[0].json()["error"]
    assert (answers[0].status_code, error["field"]) == (422, IMAGE), error
    assert busy.http.post("/v1/jobs", json=body(samples.image_part(samples.image()))).status_code == 202
