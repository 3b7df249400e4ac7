"""A worker whose stage's event loop stands still notices it itself."""

import re
import signal
from pathlib import Path

from omni_jobs.states import JobState
from tests.integration.echo_stack import ONE_LOSS, EchoStack

OPTIONS = {"OMNI_JOBS_STALL_AFTER_S": "5", "OMNI_JOBS_LEASE_S": "120", "OMNI_JOBS_HEARTBEAT_S": "1"}


def test_a_worker_whose_event_loop_stands_still_ends_and_its_successor_does_the_work(
    sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """Its ledger renews the lease all the time, so nobody else would notice."""
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, OPTIONS)
    try:
        stack.start("second")
        stalled = stack.launch("first", fault="stall")
        stack.serving(stalled)
        assert stack.ended(stack.submit()).status is JobState.COMPLETED
        held = stack.submit(first={"delay_s": 2})
        stack.running(held, "first")
        stalled.process.send_signal(signal.SIGUSR1)
        ids = [stack.submit() for _ in range(3)]
        assert stalled.process.wait(60) == 1
        assert "the stage's event loop has not turned" in stalled.log.read_text()
        stack.serving(stack.launch("first", stalled.slot))
        assert {stack.ended(job_id).status for job_id in [held, *ids]} == {JobState.COMPLETED}
        assert stack.jobs.get(held).stages[0].attempt == 2
        assert all(worker.process.poll() is None for worker in stack.workers if worker is not stalled)
    finally:
        stack.close()


def test_a_stage_run_that_blocks_the_loop_of_a_worker_that_starts_fails_and_its_neighbours_are_charged_nothing(
    sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """The queue's key is no list, so each of the workers is still starting when the loop stands still."""
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, OPTIONS, config=ONE_LOSS)
    try:
        stack.start("second")
        with stack.redis() as broker:
            broker.set(f"{stack.prefix}echo@1.first", "mine")
        poison = stack.submit("block", ring=False)
        neighbours = [stack.submit(f"neighbour {n}", ring=False, first={"delay_s": 1}) for n in range(3)]
        slot = None
        for _ in range(stack.pipelines["echo"].stage("first").retries.worker_lost + 1):
            stalled = stack.launch("first", slot, fault="block")
            assert stalled.process.wait(60) == 1
            assert re.search(r"event loop has not turned for \d+ s, in stage run \d+", stalled.log.read_text())
            assert " serves echo@1.first " not in stalled.log.read_text()
            slot = stalled.slot
        stack.serving(stack.launch("first", slot, fault="block"))
        view = stack.ended(poison)
        assert view.status is JobState.FAILED
        assert view.error is not None
        assert (view.error.code, view.stages[0].attempt) == ("quarantined", 2)
        assert [error.code for error in view.stages[0].errors] == ["engine_dead", "engine_dead"]
        assert {stack.ended(job_id).status for job_id in neighbours} == {JobState.COMPLETED}
        assert [stack.jobs.get(job_id).stages[0].errors for job_id in neighbours] == [[], [], []]
    finally:
        stack.close()


def test_native_code_that_keeps_the_interpreters_lock_ends_its_worker_and_is_given_up(
    sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """None of the worker's threads can run then, neither the watch nor the one that renews the lease."""
    options = {**OPTIONS, "OMNI_JOBS_LEASE_S": "5"}
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, options, config=ONE_LOSS)
    try:
        stack.start("second")
        poison, slot = stack.submit("hold"), None
        neighbour = stack.submit("neighbour", first={"delay_s": 1})
        for _ in range(stack.pipelines["echo"].stage("first").retries.worker_lost + 1):
            held = stack.launch("first", slot, fault="hold")
            assert held.process.wait(60) == 1
            assert re.search(r"Timeout \(0:00:1\d\)!(.|\n)*in run_or_hold", held.log.read_text())
            slot = held.slot
        stack.serving(stack.launch("first", slot, fault="hold"))
        view = stack.ended(poison)
        assert (view.status, view.error and view.error.code) == (JobState.FAILED, "quarantined")
        assert stack.ended(neighbour).status is JobState.COMPLETED
    finally:
        stack.close()
