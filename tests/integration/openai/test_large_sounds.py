"""Sounds of a chat's answer that are larger than what a server holds of one: it reads them as the client does."""

import json
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef
from tests.integration.api_server import ApiServer, serve
from tests.integration.hand_worker import HandWorker
from tests.integration.openai.stock import Stock, stock_client, until

ROOT = Path(__file__).parents[3]
SOUND = bytes(range(256)) * (65 << 12) + b"end"  # no multiple of 3 bytes
MOST_HELD = len(SOUND) // 2  # in sockets, too
LATE_S = 60.0
SPOKEN: dict[str, Any] = {"modalities": ["audio"], "audio": {"voice": "nova", "format": "wav"}}


@pytest.fixture
def api(sqlite_url: str, valkey_server: str, tmp_path: Path) -> Iterator[ApiServer]:
    settings = Settings(
        data_dir=tmp_path,
        database_url=sqlite_url,
        broker_url=valkey_server,  # type: ignore[arg-type]
        stage_configs=ROOT / "stage_configs",
        storage_sync=False,
    )
    with serve(settings) as server:
        yield server


@pytest.fixture
def stock(api: ApiServer) -> Iterator[Stock]:
    with stock_client(f"http://{api.host}:{api.port}") as client:
        yield client


@pytest.fixture
def reads(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each piece that the server reads of the sound."""
    sizes: list[int] = []
    open_stream = api.services.store.open_stream

    def opened(ref: ObjectRef) -> Iterator[bytes]:
        for piece in open_stream(ref):
            sizes.append(len(piece))
            yield piece

    monkeypatch.setattr(api.services.store, "open_stream", opened)
    return sizes


def speak(api: ApiServer, job_id: str) -> None:
    worker = HandWorker(api, job_id, "echo_media")
    claim = worker.claim("sound")
    worker.complete(claim, artifacts=[worker.artifact(claim, data=SOUND)])


def test_a_large_sound_of_a_whole_answer_is_read_as_its_client_reads(
    api: ApiServer, stock: Stock, reads: list[int]
) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    ask: Any = stock.client.chat.completions.with_streaming_response.create
    answering = ask(model="echo_media", messages=messages, **SPOKEN)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answering.__enter__)
        until(lambda: api.services.jobs.list(limit=1).jobs)
        [job] = api.services.jobs.list(limit=1).jobs
        speak(api, job.id)
        answer = answered.result(LATE_S)
    body = answer.iter_bytes()
    begin = next(body)
    assert sum(reads) < MOST_HELD
    whole = begin + b"".join(body)
    answering.__exit__(None, None, None)
    assert int(answer.headers["content-length"]) == len(whole)
    [choice] = json.loads(whole)["choices"]
    assert b64decode(choice["message"]["audio"]["data"]) == SOUND


def test_a_large_sound_of_a_stream_is_read_as_its_client_reads(api: ApiServer, stock: Stock, reads: list[int]) -> None:
    chunks = stock.chat(stream=True, **SPOKEN)
    speak(api, next(chunks).id.replace("chatcmpl-", "job-"))
    audio = next(chunks).choices[0].delta.audio
    assert audio.id.startswith("audio-")
    assert sum(reads) < MOST_HELD
    parts = [audio, *(getattr(chunk.choices[0].delta, "audio", None) for chunk in chunks)]
    sound = [b64decode(part.data, validate=True) for part in parts if part is not None and part.data is not None]
    assert b"".join(sound) == SOUND
