"""Whether a worker that starts takes its slot from the one that holds it: a dead one, a silent one, one that lives."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import delete, update

from omni_jobs.database.database import Database
from omni_jobs.database.tables import WorkerRow
from omni_jobs.errors import Fenced, SlotTaken
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import NewWorker, SlotHolder
from omni_jobs.settings import Settings
from tests.integration.execution.ledger_bench import Bench, Silent, until
from workers.execution import incarnation

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def of_process(pid: int, started: int | None, space: str | None = None) -> NewWorker:
    space = space or incarnation.pid_space()
    return NewWorker(
        f"worker-{uuid4().hex}", "slot", StageId(PipelineId("echo", "d"), "first"), "here", pid, 8, "1", space, started
    )


@linux_only
async def test_a_dead_predecessors_slot_is_taken_at_once_before_the_engine_is_loaded(database: Database) -> None:
    """No process of its pid is left, so nothing is waited for: the watch would take three heartbeats of a minute."""
    ended = subprocess.Popen(["true"])
    about = of_process(ended.pid, incarnation.started(os.getpid()))
    ended.wait()
    predecessor = Silent(database, worker=about)
    assert len(predecessor.hold()) == 1
    newcomer = Bench(database, Settings(heartbeat_s=60, lease_s=120))
    async with asyncio.timeout(20):
        await asyncio.to_thread(newcomer.ledger.take_slot, asyncio.get_running_loop())
    assert newcomer.doorbells.rung == ["echo.first"]
    assert newcomer.jobs.workers() == [], "it does not serve yet"
    await asyncio.to_thread(newcomer.ledger.serve)
    assert [worker.id for worker in newcomer.jobs.workers()] == [newcomer.worker.worker_id]
    await asyncio.to_thread(newcomer.ledger.close)


@linux_only
async def test_a_later_process_of_the_same_pid_is_not_the_predecessor(database: Database) -> None:
    started = incarnation.started(os.getpid())
    assert started is not None
    Silent(database, worker=of_process(os.getpid(), started - 1)).hold()
    newcomer = Bench(database, Settings(heartbeat_s=60, lease_s=120))
    async with asyncio.timeout(20):
        await newcomer.start()
    await asyncio.to_thread(newcomer.ledger.close)


@linux_only
@pytest.mark.parametrize("space", [None, "another boot/1"], ids=["its process is stopped", "on another host"])
async def test_a_holder_that_renews_nothing_counts_as_dead(database: Database, space: str | None) -> None:
    with _sleeper() as process:
        if space is None:
            process.send_signal(signal.SIGSTOP)
            here, start = incarnation.pid_space(), incarnation.started(process.pid)
            await until(lambda: incarnation.state(process.pid, here, start) == "stopped")
        holder = Silent(database, worker=of_process(process.pid, incarnation.started(process.pid), space))
        assert len(holder.hold()) == 1
        newcomer = Bench(database)
        async with asyncio.timeout(30):
            await newcomer.start()
        if space is None:
            assert process.wait(30) == -signal.SIGKILL, "else its engine would keep the device's memory"
        else:
            assert process.poll() is None
    assert newcomer.doorbells.rung == ["echo.first"]
    await asyncio.to_thread(newcomer.ledger.close)


@linux_only
async def test_a_holder_that_runs_and_cannot_renew_keeps_its_slot(database: Database) -> None:
    """The database may be busy, for the holder as well: its process is proof enough while its lease lasts."""
    with _sleeper() as process:
        Silent(database, worker=of_process(process.pid, incarnation.started(process.pid))).hold()
        newcomer = Bench(database)
        with pytest.raises(SlotTaken, match=f"pid {process.pid}"):
            await newcomer.start()
        await asyncio.to_thread(newcomer.ledger.close)


class Beating(Silent):
    """Holds its slot, and from ``begin`` on renews its lease all the time; ``lost`` once it could not."""

    def __init__(self, database: Database, worker: NewWorker | None = None) -> None:
        super().__init__(database, worker=worker)
        self.lost = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def begin(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(0.05):
            try:
                self.jobs.renew(self.worker.worker_id, 60.0)
            except Fenced:
                self.lost.set()
                return


async def refused(newcomer: Bench, holder: Beating) -> None:
    try:
        with pytest.raises(SlotTaken, match=holder.worker.worker_id):
            async with asyncio.timeout(60):
                await newcomer.start()
    finally:
        holder.end()
        await asyncio.to_thread(newcomer.ledger.close)
    assert not holder.lost.is_set()


async def test_a_holder_that_renews_when_its_slot_is_about_to_be_taken_keeps_it(database: Database) -> None:
    """The newcomer has seen it silent; its registration comes later, as when the database was away between."""
    holder, newcomer = Beating(database), Bench(database)
    holder.hold()
    take = newcomer.jobs.register_worker

    def take_late(*arguments: Any, **options: Any) -> set[str]:
        holder.jobs.renew(holder.worker.worker_id, 60.0)
        holder.begin()
        return take(*arguments, **options)

    newcomer.jobs.register_worker = take_late  # type: ignore[method-assign]
    await refused(newcomer, holder)


async def test_a_holder_lives_though_the_databases_clock_steps_back(database: Database) -> None:
    holder, newcomer = Beating(database), Bench(database)
    holder.hold()
    with database.begin() as tx:
        tx.execute(update(WorkerRow).values(renewed_at=WorkerRow.renewed_at + 3600, lease_until=10**10))
    look = newcomer.jobs.slot_holder

    def slot_holder(slot: str) -> SlotHolder | None:
        found = look(slot)
        holder.begin()  # from now on the clock is an hour earlier
        return found

    newcomer.jobs.slot_holder = slot_holder  # type: ignore[method-assign]
    await refused(newcomer, holder)


async def test_a_holder_is_watched_for_heartbeats_of_its_own(database: Database) -> None:
    """The newcomer's come every 0.1 s: for three of those it would look 46 times."""
    holder, newcomer = Beating(database), Bench(database)
    holder.worker = replace(holder.worker, heartbeat_s=5)
    holder.hold()
    look, looks = newcomer.jobs.slot_holder, iter(range(1000))

    def slot_holder(slot: str) -> SlotHolder | None:
        if next(looks) == 60:
            holder.jobs.renew(holder.worker.worker_id, 60.0)
        return look(slot)

    newcomer.jobs.slot_holder = slot_holder  # type: ignore[method-assign]
    await refused(newcomer, holder)


@linux_only
async def test_a_holder_whose_process_cannot_be_seen_is_watched(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc hides processes of other users where it is mounted so (hidepid)."""
    with _sleeper() as process:
        holder = Beating(database, of_process(process.pid, incarnation.started(process.pid)))
        holder.hold()
        for name in ("self", "sys"):
            (tmp_path / name).symlink_to(Path("/proc") / name)
        monkeypatch.setattr(incarnation, "_PROC", tmp_path)
        assert incarnation.pid_space() == holder.worker.pid_space
        holder.begin()
        await refused(Bench(database), holder)


@contextmanager
def _sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("loading", [False, True], ids=["serves", "loads"])
@pytest.mark.parametrize("known", [True, False], ids=["a process here", "one without /proc"])
async def test_the_slot_of_a_living_worker_is_refused(database: Database, known: bool, loading: bool) -> None:
    about = of_process(os.getpid(), incarnation.started(os.getpid())) if known else None
    holder = Bench(database, worker=about)
    await asyncio.to_thread(holder.ledger.take_slot, asyncio.get_running_loop())
    if not loading:
        await asyncio.to_thread(holder.ledger.serve)
    newcomer = Bench(database)
    with pytest.raises(SlotTaken) as caught:
        await newcomer.start()
    for part in ("slot", holder.worker.worker_id, holder.worker.host, str(holder.worker.pid), "--slot", "hostname"):
        assert part in str(caught.value)
    await asyncio.to_thread(newcomer.ledger.close)
    assert holder.fenced == []
    if loading:
        await asyncio.to_thread(holder.ledger.serve)
    assert len(await holder.claim_new()) == 1
    await asyncio.to_thread(holder.ledger.close)


async def test_a_worker_that_loads_for_longer_than_its_lease_keeps_its_slot(database: Database) -> None:
    bench = Bench(database)
    await asyncio.to_thread(bench.ledger.take_slot, asyncio.get_running_loop())
    with database.begin() as transaction:
        transaction.execute(delete(WorkerRow))  # its lease was over, and a rescuer came by
    await until(lambda: bench.jobs.slot_holder("slot"))
    await asyncio.to_thread(bench.ledger.serve)
    assert len(await bench.claim_new()) == 1
    assert bench.fenced == []
    await asyncio.to_thread(bench.ledger.close)


async def test_a_loading_worker_whose_slot_is_another_s_stops(database: Database) -> None:
    bench, rival = Bench(database), Bench(database)
    await asyncio.to_thread(bench.ledger.take_slot, asyncio.get_running_loop())
    rival.jobs.register_worker(rival.worker, 60.0, instead_of=bench.jobs.slot_holder("slot"))
    await until(lambda: bench.fenced)
    with pytest.raises(Fenced, match=rival.worker.worker_id):
        await asyncio.to_thread(bench.ledger.serve)
    await asyncio.to_thread(bench.ledger.close)
