"""The worker's side of snapshots: stored and recorded while a run goes on, loaded by the next attempt, or refused."""

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import Fenced, ModelError, StorageFull, StorageUnavailable
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Claim, Completion, NewSnapshot, NewWorker, StoredSnapshot
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.storage import ObjectRef, snapshot_key
from omni_jobs.storage.local import LocalObjectStore
from workers.execution.snapshots import RunSnapshots, StageSnapshots
from workers.stages.stage import Stage
from workers.stages.types import Snapshot

PIPELINE = load_pipeline(Path(__file__).parents[3] / "stage_configs" / "echo.yaml")
ORIGIN = {"family": "pastel", "component": None, "dtype": "float32"}
SNAPSHOT = Snapshot(
    {"latents": torch.arange(12.0).reshape(3, 4), "history": [torch.ones(2, dtype=torch.bfloat16)]},
    {"sigmas": [1.0, 0.5], "saved_by": "pastel 1"},
    steps_done=5,
)
CLAIM = Claim(7, "job-7", "first", 1, "echo", {}, (), 2**63 - 1, {}, True, {}, False)


class RecordingLedger:
    """A ledger without a database, which records what it is told."""

    worker = NewWorker("worker-1", "slot", StageId(PipelineId("echo", ""), "first"), "host", 1, 8, "1")

    def __init__(self) -> None:
        self.recorded: list[NewSnapshot] = []
        self.error: Exception | None = None
        self.is_over = False  # the attempt

    async def record_snapshot(self, snapshot: NewSnapshot) -> bool:
        if self.error is not None:
            raise self.error
        self.recorded.append(snapshot)
        return not self.is_over


class SlowStore(LocalObjectStore):
    """A local store whose puts wait until the test lets them go, or fail as it says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, sync=False)
        self.may_put = threading.Event()
        self.may_put.set()
        self.error: Exception | None = None
        self.puts: list[str] = []

    def put(self, key: str, buffers: Sequence[Any], *, media_type: str = "application/octet-stream") -> ObjectRef:
        self.puts.append(key)
        assert self.may_put.wait(20)
        if self.error is not None:
            raise self.error
        return super().put(key, buffers, media_type=media_type)


class Bench:
    def __init__(self, directory: Path) -> None:
        self.store = SlowStore(directory)
        self.ledger = RecordingLedger()

    def stage_snapshots(self, origin: dict[str, Any] | None = ORIGIN, *, max_bytes: int = 10_000) -> StageSnapshots:
        config = PIPELINE.stage("first").model_copy(update={"max_payload_bytes": max_bytes})
        return StageSnapshots(Stage(PIPELINE, config, None), self.store, self.ledger, origin)  # type: ignore[arg-type]

    async def stored(self, snapshot: Snapshot = SNAPSHOT, claim: Claim = CLAIM) -> Claim:
        """Store a snapshot, and return the claim of the next attempt."""
        run = self.stage_snapshots().of(claim)
        run.put(snapshot)
        await idle(run)
        [new] = self.ledger.recorded
        return claim._replace(
            attempt=claim.attempt + 1, snapshot=StoredSnapshot(new.ref, new.steps_done, claim.attempt)
        )

    def keys(self) -> set[str]:
        return {each.key for each in self.store.list()}


async def idle(run: RunSnapshots, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while run._storing is not None:
            await asyncio.sleep(0.001)


def warnings(run: RunSnapshots) -> list[tuple[str, str]]:
    completion = run.warn(Completion(7, 1, "worker-1", result={"a": 1}))
    assert completion.result_json == '{"a":1}'
    return [(each["code"], each["message"]) for each in completion.warnings]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_what_one_attempt_stores_the_next_one_loads(bench: Bench) -> None:
    claim = await bench.stored()
    [new] = bench.ledger.recorded
    key = snapshot_key("job-7", "first", 1, 1)
    assert (new.stage_run_id, new.attempt, new.worker_id, new.steps_done, new.ref.key) == (7, 1, "worker-1", 5, key)
    run = bench.stage_snapshots().of(claim)
    assert run.newest is None
    await run.load()
    assert run.newest is not None
    assert (run.newest.values, run.newest.steps_done) == (SNAPSHOT.values, 5)
    assert torch.equal(run.newest.tensors["latents"], SNAPSHOT.tensors["latents"])
    [history] = run.newest.tensors["history"]
    assert torch.equal(history, SNAPSHOT.tensors["history"][0])
    assert warnings(run) == []


@pytest.mark.parametrize("damaged", [1, 2])
async def test_a_damaged_newest_one_costs_the_steps_to_the_one_before(bench: Bench, damaged: int) -> None:
    run = bench.stage_snapshots().of(CLAIM)
    for steps in (5, 6):
        run.put(SNAPSHOT._replace(steps_done=steps))
        await idle(run)
    older, newer = (StoredSnapshot(new.ref, new.steps_done, 1) for new in bench.ledger.recorded)
    for each in (newer, older)[:damaged]:
        bench.store.put(each.ref.key, [b"damaged"])
    claim = CLAIM._replace(attempt=2, snapshot=replace(newer, before=older))
    again = bench.stage_snapshots().of(claim)
    await again.load()
    [(code, message)] = warnings(again)
    assert code == "snapshot_unusable"
    assert newer.ref.key in message
    if damaged == 1:
        assert again.newest is not None
        assert again.newest.steps_done == 5
        assert "went on from the snapshot before" in message
    else:
        assert again.newest is None
        assert "began anew" in message


async def test_one_is_stored_at_a_time_and_of_those_that_wait_the_newest(bench: Bench) -> None:
    run = bench.stage_snapshots().of(CLAIM)
    bench.store.may_put.clear()
    run.put(SNAPSHOT._replace(steps_done=1))
    await asyncio.to_thread(wait_for, bench.store.puts)
    for steps in (2, 3, 4):
        run.put(SNAPSHOT._replace(steps_done=steps))
    bench.store.may_put.set()
    await idle(run)
    assert [each.steps_done for each in bench.ledger.recorded] == [1, 4]
    run.put(SNAPSHOT)
    await idle(run)
    assert [each.ref.key[-1] for each in bench.ledger.recorded] == ["1", "2", "3"]
    assert warnings(run) == []


def wait_for(calls: list[str]) -> None:
    for _ in range(4000):
        if calls:
            return
        threading.Event().wait(0.005)


@pytest.mark.parametrize("end", ["over", "ended", "fenced"])
async def test_one_that_comes_too_late_is_deleted_unless_sql_may_refer_to_it(bench: Bench, end: str) -> None:
    bench.store.may_put.clear()
    run = bench.stage_snapshots().of(CLAIM)
    run.put(SNAPSHOT)
    await asyncio.to_thread(wait_for, bench.store.puts)
    run.put(SNAPSHOT)
    if end == "ended":
        run.end()
    bench.ledger.is_over = True
    bench.ledger.error = Fenced() if end == "fenced" else None
    bench.store.may_put.set()
    await idle(run)
    run.put(SNAPSHOT)
    await idle(run)
    assert len(bench.store.puts) == 1
    assert bench.keys() == ({snapshot_key("job-7", "first", 1, 1)} if end == "fenced" else set())
    assert warnings(run) == []


@pytest.mark.parametrize(
    "error", [StorageFull("no room", key="k"), StorageUnavailable("away", key="k"), OSError(errno.EIO, "broken")]
)
async def test_one_that_cannot_be_stored_is_a_warning(bench: Bench, error: Exception) -> None:
    run = bench.stage_snapshots().of(CLAIM)
    bench.store.error = error
    for _ in range(2):
        run.put(SNAPSHOT)
        await idle(run)
    bench.store.error = None
    run.put(SNAPSHOT)
    await idle(run)
    assert [each.steps_done for each in bench.ledger.recorded] == [5], "the next one is stored"
    [(code, message)] = warnings(run)
    assert code == "snapshot_not_stored"
    assert message.startswith("2 snapshots were not stored: ")
    assert "stage first" in message


async def test_on_a_full_disk_it_is_a_warning(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store._min_free_bytes = 1 << 62  # more than the disk has
    run = bench.stage_snapshots().of(CLAIM)
    run.put(SNAPSHOT)
    await idle(run)
    [(code, message)] = warnings(run)
    assert code == "snapshot_not_stored"
    assert "free" in message
    assert bench.keys() == set()


async def test_one_larger_than_a_payload_may_be_is_not_stored(bench: Bench) -> None:
    run = bench.stage_snapshots(max_bytes=100).of(CLAIM)
    run.put(SNAPSHOT)
    await idle(run)
    [(code, message)] = warnings(run)
    assert code == "snapshot_not_stored"
    assert "at most 100 (stage first, key jobs/" in message
    assert "field max_payload_bytes" in message


async def test_while_the_store_is_away_the_next_attempt_waits(bench: Bench) -> None:
    claim = await bench.stored()
    os.rename(bench.store._directory, f"{bench.store._directory}-away")
    run = bench.stage_snapshots().of(claim)
    with pytest.raises(StorageUnavailable):
        await run.load()
    os.rename(f"{bench.store._directory}-away", bench.store._directory)
    await run.load()
    assert run.newest is not None


def stored_in(claim: Claim) -> StoredSnapshot:
    assert claim.snapshot is not None
    return claim.snapshot


@pytest.mark.parametrize(
    ("origin", "change", "field"),
    [
        (ORIGIN | {"family": "other"}, {}, "values.origin.family"),
        (ORIGIN | {"component": "denoiser"}, {}, "values.origin.component"),
        (ORIGIN | {"dtype": "bfloat16"}, {}, "values.origin.dtype"),
        (ORIGIN, {"seed": 8}, "values.origin.seed"),
        (ORIGIN, {"job_id": "job-8"}, "manifest.job_id"),
        (ORIGIN, {"stage": "second"}, "manifest.stage"),
        (None, {}, "component"),
    ],
)
async def test_of_another_origin_it_is_refused(
    bench: Bench, origin: dict[str, Any] | None, change: dict[str, Any], field: str
) -> None:
    claim = await bench.stored()
    run = bench.stage_snapshots(origin).of(claim._replace(**change))
    await run.load()
    assert run.newest is None
    [(code, message)] = warnings(run)
    assert code == "snapshot_unusable"
    assert f"field {field})" in message
    assert f"key {stored_in(claim).ref.key}" in message
    assert "stage " in message


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "no payload", "other steps"])
async def test_what_is_damaged_is_refused(bench: Bench, damage: str) -> None:
    claim = await bench.stored()
    stored = stored_in(claim)
    if damage == "missing":
        bench.store.delete([stored.ref.key])
    elif damage == "other steps":
        claim = claim._replace(snapshot=replace(stored, steps_done=6))
    else:
        data = bytes(bench.store.read(stored.ref, max_bytes=10_000))
        new = {"truncated": data[:-4], "changed": data[:-1] + b"\xff", "no payload": b"PK" + data}[damage]
        ref = bench.store.put(stored.ref.key, [new])
        if damage == "no payload":  # as its writer left it
            claim = claim._replace(snapshot=replace(stored, ref=ref))
    run = bench.stage_snapshots().of(claim)
    await run.load()
    assert run.newest is None
    [(code, message)] = warnings(run)
    assert code == "snapshot_unusable"
    assert stored.ref.key in message


async def test_a_model_may_refuse_what_was_loaded(bench: Bench) -> None:
    run = bench.stage_snapshots().of(await bench.stored())
    await run.load()
    run.refuse(ModelError("float32 [3, 4] is due, not float32 [3, 5]", field="tensors.latents"))
    assert run.newest is None
    [(code, message)] = warnings(run)
    assert code == "snapshot_unusable"
    assert "stage first, key jobs/" in message
    assert message.endswith("field tensors.latents)")


async def test_a_call_that_hangs_does_not_keep_the_worker(bench: Bench) -> None:
    owner = bench.stage_snapshots()
    bench.store.may_put.clear()
    run = owner.of(CLAIM)
    run.put(SNAPSHOT)
    await asyncio.to_thread(wait_for, bench.store.puts)
    async with asyncio.timeout(10):
        await owner.close()
    bench.store.may_put.set()
    assert bench.ledger.recorded == []
