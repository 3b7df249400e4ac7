"""The hand-off of a stage that makes an artifact: what it stores, on threads, and what it leaves when that fails."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_jobs.errors import ModelError, OmniJobsError, PayloadTooLarge, StorageUnavailable
from omni_jobs.jobs import Claim
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.pipelines.stage_config import OutputConfig
from omni_jobs.storage import LocalObjectStore, ObjectRef, artifact_key, payload_key
from workers.execution.handoff import HandOff
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput

ECHO = load_pipeline(Path(__file__).parents[3] / "stage_configs" / "echo.yaml")
PIPELINE = ECHO.model_copy(update={"outputs": {**ECHO.outputs, "audio": OutputConfig(stage="first")}})
CLAIM = Claim(
    stage_run_id=1,
    job_id="job-1",
    stage="first",
    attempt=3,
    pipeline="echo",
    request={"messages": [{"role": "user", "content": "Hello"}], "modalities": ["text", "audio"]},
    media=(),
    seed=1,
    upstream={},
    has_successors=True,
    alone=False,
)
ARTIFACT = artifact_key("job-1", "first", 3, "audio.wav")
PAYLOAD = payload_key("job-1", "first", 3)


class Room:
    """Memory of a budget that counts how often it was given back."""

    def __init__(self) -> None:
        self.freed = 0

    def free(self) -> None:
        self.freed += 1


class NoArtifacts(LocalObjectStore):
    """A store that is away whenever an artifact comes."""

    def put(self, key: str, buffers: Sequence[Any], *, media_type: str = "application/octet-stream") -> ObjectRef:
        if media_type == "audio/wav":
            raise StorageUnavailable("away", key=key)
        return super().put(key, buffers, media_type=media_type)


class Gate:
    """Holds each thread that passes until it is opened; ``entered`` counts them."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()

    async def until_entered(self, count: int = 1) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self.entered.acquire, timeout=20)

    def hold(self) -> None:
        self.entered.release()
        assert self._open.wait(20)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


class SlowStore(LocalObjectStore):
    """A store that reads what it is given once the gate opens."""

    def __init__(self, directory: Path, gate: Gate) -> None:
        super().__init__(directory, sync=False)
        self._gate = gate

    def put(self, key: str, buffers: Sequence[Any], *, media_type: str = "application/octet-stream") -> ObjectRef:
        self._gate.hold()
        return super().put(key, buffers, media_type=media_type)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls that were handed to a thread pool."""
    calls: list[object] = []
    submit = ThreadPoolExecutor.submit

    def count(pool: ThreadPoolExecutor, function: Callable[[], object]) -> Any:
        calls.append(function)
        return submit(pool, function)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", count)
    return calls


def hand_off(store: LocalObjectStore, *, inline_bytes: int, **changes: Any) -> HandOff:
    stage = Stage(PIPELINE, PIPELINE.stage("first").model_copy(update=changes), None)
    return HandOff(stage, store, "worker-1", inline_bytes=inline_bytes, on_broken=pytest.fail)


def output(room: Room, *, loudest: float = 0.5) -> OmniModelRunnerOutput:
    waveform = torch.full((2400,), loudest)
    outputs = {"bytes": (np.arange(10_000) % 7).astype(np.uint8), "waveform": waveform}
    return OmniModelRunnerOutput(multimodal_outputs=outputs, values={"sampling_rate": 24_000}, room=room)


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
async def test_an_artifact_is_encoded_on_one_thread_and_stored_on_another(
    tmp_path: Path, trips: list[object], inline_bytes: int
) -> None:
    store, room = LocalObjectStore(tmp_path, sync=False), Room()
    off = hand_off(store, inline_bytes=inline_bytes)
    stage_input = await off.load(CLAIM)
    completion = await off.store(CLAIM, stage_input, output(room))
    assert len(trips) == 2
    assert room.freed == 1
    (artifact,) = completion.artifacts
    assert artifact.ref.key == ARTIFACT
    assert bytes(store.read(artifact.ref, max_bytes=1 << 20))[:4] == b"RIFF"
    if completion.payload is None:
        assert completion.inline_payload is not None
        assert len(completion.inline_payload) == completion.payload_bytes
    else:
        assert (completion.payload.key, completion.payload.size) == (PAYLOAD, completion.payload_bytes)
    assert (completion.payload is None) == (inline_bytes > 0)


@pytest.mark.parametrize(
    ("kind", "changes", "loudest", "error"),
    [
        (NoArtifacts, {}, 0.5, StorageUnavailable),
        (LocalObjectStore, {"max_payload_bytes": 100}, 0.5, PayloadTooLarge),
        (LocalObjectStore, {}, float("nan"), ModelError),
    ],
)
async def test_an_output_that_cannot_be_stored_leaves_nothing(
    tmp_path: Path, kind: type[LocalObjectStore], changes: dict[str, Any], loudest: float, error: type[OmniJobsError]
) -> None:
    store, room = kind(tmp_path, sync=False), Room()
    off = hand_off(store, inline_bytes=0, **changes)
    stage_input = await off.load(CLAIM)
    with pytest.raises(error):
        await off.store(CLAIM, stage_input, output(room, loudest=loudest))
    assert list(store.list()) == []
    assert room.freed == 1


async def freed(room: Room) -> None:
    async with asyncio.timeout(20):
        while not room.freed:
            await asyncio.sleep(0.005)


async def test_a_cancelled_store_frees_the_budget_once_its_thread_reads_the_output_no_more(
    tmp_path: Path, gate: Gate
) -> None:
    room, off = Room(), hand_off(SlowStore(tmp_path, gate), inline_bytes=0)
    storing = asyncio.create_task(off.store(CLAIM, await off.load(CLAIM), output(room)))
    await gate.until_entered()
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    assert room.freed == 0, "the thread reads the tensors"
    gate.open()
    await freed(room)
    assert room.freed == 1


async def test_a_cancelled_store_frees_the_budget_once_its_output_is_encoded_no_more(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, off = Room(), hand_off(LocalObjectStore(tmp_path, sync=False), inline_bytes=0)
    slow(monkeypatch, gate)
    storing = asyncio.create_task(off.store(CLAIM, await off.load(CLAIM), output(room)))
    await gate.until_entered()
    storing.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert room.freed == 0, "the thread reads the tensors"
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await storing
    assert room.freed == 1


async def test_loads_go_on_while_many_outputs_are_encoded(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalObjectStore(tmp_path, sync=False)
    off = hand_off(store, inline_bytes=0)
    stage_input = await off.load(CLAIM)
    stored = store.put("jobs/job-1/media/0", [b"not a picture"])
    slow(monkeypatch, gate)
    storing = [asyncio.create_task(off.store(CLAIM, stage_input, output(Room()))) for _ in range(64)]
    await gate.until_entered(4)
    with_medium = CLAIM._replace(media=[{**stored.model_dump(), "media_type": "image/png"}])
    async with asyncio.timeout(20):
        assert [bytes(medium) for medium in (await off.load(with_medium)).media] == [b"not a picture"]
    gate.open()
    await asyncio.gather(*storing)


def slow(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Let stages encode their outputs once the gate opens."""
    finish = Stage.finish

    def late(*arguments: Any) -> Any:
        gate.hold()
        return finish(*arguments)

    monkeypatch.setattr(Stage, "finish", late)
