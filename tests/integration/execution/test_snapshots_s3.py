"""Snapshots on S3: while it is away the run goes on without them; answers that are lost lose nothing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from omni_jobs.jobs import StoredSnapshot
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore, open_store
from tests.services.fault_proxy import Fault, FaultProxy
from tests.services.seaweedfs import SeaweedFS
from tests.unit.execution.test_snapshots import CLAIM, ORIGIN, PIPELINE, SNAPSHOT, RecordingLedger, idle, warnings
from workers.execution.snapshots import StageSnapshots
from workers.stages.stage import Stage


@pytest.fixture
def proxy(seaweedfs: SeaweedFS) -> Iterator[FaultProxy]:
    with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
        yield proxy


@pytest.fixture
def settings(seaweedfs: SeaweedFS, proxy: FaultProxy, tmp_path: Path) -> Settings:
    settings = seaweedfs.settings(tmp_path, f"test-{uuid4().hex}")
    return settings.model_copy(update={"s3_endpoint_url": proxy.url})


@pytest.fixture
def store(settings: Settings) -> ObjectStore:
    return open_store(settings)


async def test_while_it_is_away_none_is_stored_and_then_they_are_again(store: ObjectStore, proxy: FaultProxy) -> None:
    ledger = RecordingLedger()
    owner = StageSnapshots(Stage(PIPELINE, PIPELINE.stage("first"), None), store, ledger, ORIGIN)  # type: ignore[arg-type]
    run = owner.of(CLAIM)
    proxy.set(Fault(refuse=True))
    run.put(SNAPSHOT._replace(steps_done=1))
    run.put(SNAPSHOT._replace(steps_done=2))
    await idle(run, within_s=120)
    assert ledger.recorded == []
    proxy.clear()
    run.put(SNAPSHOT._replace(steps_done=3))
    await idle(run, within_s=120)
    [new] = ledger.recorded
    assert new.steps_done == 3
    [(code, message)] = warnings(run)
    assert code == "snapshot_not_stored"
    assert f"stage first, key {new.ref.key[:-1]}" in message
    again = owner.of(CLAIM._replace(attempt=2, snapshot=StoredSnapshot(new.ref, 3, 1)))
    await again.load()
    assert again.newest is not None
    assert warnings(again) == []
    await owner.close()


async def test_a_put_that_hangs_keeps_neither_the_run_nor_its_worker(store: ObjectStore, proxy: FaultProxy) -> None:
    owner = StageSnapshots(
        Stage(PIPELINE, PIPELINE.stage("first"), None),
        store,
        RecordingLedger(),  # type: ignore[arg-type]
        ORIGIN,
    )
    run = owner.of(CLAIM)
    proxy.set(Fault(hang=True))
    run.put(SNAPSHOT)
    await asyncio.sleep(0)
    run.end()
    assert warnings(run) == []
    async with asyncio.timeout(20):
        await owner.close()
    proxy.clear()
