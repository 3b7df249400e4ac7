"""Doorbells and polls: a doorbell saves a wait, whatever is in it, and a lost one costs no more than a poll."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.states import JobState
from tests.integration.echo_stack import PIPELINE, EchoStack

NEVER = {"OMNI_JOBS_POLL_S": "60"}  # a poll comes later than what a test waits for


@pytest.fixture
def polling(sqlite_url: str, valkey_url: str, tmp_path: Path) -> Iterator[EchoStack]:
    stack = EchoStack(tmp_path, sqlite_url, valkey_url)
    yield stack
    stack.close()


@pytest.fixture
def waiting(sqlite_url: str, valkey_url: str, tmp_path: Path) -> Iterator[EchoStack]:
    """Workers that wait for doorbells, and have a slot each."""
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, NEVER, config=PIPELINE.replace("slots: 8", "slots: 1"))
    yield stack
    stack.close()


def ready(stack: EchoStack) -> None:
    """Wait until the workers pop doorbells."""
    for worker in stack.workers:
        stack.until(lambda log=worker.log: "ready." in log.read_text() or None, 60)  # type: ignore[misc]


def completed(stack: EchoStack, *job_ids: str) -> None:
    assert {stack.ended(job_id, within_s=30).status for job_id in job_ids} == {JobState.COMPLETED}
    assert all(worker.process.poll() is None for worker in stack.workers)


def test_a_job_without_a_doorbell_starts_within_a_poll(polling: EchoStack) -> None:
    polling.start("first", "second")
    ready(polling)
    for _ in range(3):
        completed(polling, polling.submit(ring=False))


def test_an_emptied_broker_costs_a_poll(polling: EchoStack) -> None:
    first, second = polling.start("first", "second")
    ready(polling)
    running = polling.submit(first={"delay_s": 1})
    polling.running(running, "first")
    with polling.redis() as client:
        job_ids = [polling.submit(ring=False) for _ in range(20)]
        client.flushall()
    completed(polling, running, *job_ids)
    completed(polling, polling.submit())
    for worker in (first, second):
        assert polling.until(lambda slot=worker.slot: polling.app.control.ping([slot], timeout=1) or None, 60)  # type: ignore[misc]


def test_a_doorbell_makes_a_worker_claim_and_each_stage_rings_for_the_next(waiting: EchoStack) -> None:
    waiting.start("first", "second")
    ready(waiting)
    completed(waiting, waiting.submit())


def test_whatever_stands_in_the_queue_rings(waiting: EchoStack) -> None:
    waiting.start("first", "second")
    ready(waiting)
    for message in (b"\x80 junk", b"", b"[]", b'{"headers": {"task": "celery.chord_unlock"}}'):
        job_id = waiting.submit(ring=False)
        with waiting.redis() as client:
            client.lpush(f"{waiting.prefix}echo@1.first", message)
        completed(waiting, job_id)


def test_a_worker_that_is_full_passes_the_doorbell_on(waiting: EchoStack) -> None:
    """One doorbell for three jobs, and three workers with a slot each: all three run side by side."""
    waiting.start("first", "first", "first")
    ready(waiting)
    job_ids = [waiting.submit(ring=False, first={"delay_s": 50}) for _ in range(3)]
    waiting.app.broker.ring(["echo.first"])
    for job_id in job_ids:
        waiting.running(job_id, "first")


@pytest.mark.parametrize("when", ["starts", "runs"])
def test_a_queue_whose_key_is_no_list_is_waited_for_and_its_work_goes_on(polling: EchoStack, when: str) -> None:
    key = f"{polling.prefix}echo@1.first"
    with polling.redis() as broker:
        if when == "starts":
            broker.set(key, "mine")
        first, _ = polling.start("first", "second")
        if when == "runs":
            ready(polling)
            broker.set(key, "mine")
        completed(polling, polling.submit(ring=False))
        polling.until(lambda: first.log.read_text().count("in the broker is no list") > 3 or None, 60)
        assert broker.get(key) == b"mine"
        broker.delete(key)
    ready(polling)
    completed(polling, polling.submit())
    polling.until(lambda: polling.app.broker.depth("echo.first") == 0 or None, 30)
