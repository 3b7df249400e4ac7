"""A stage that is paused and resumed under real workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.identity import PipelineId, StageId
from omni_jobs.states import JobState, StageRunState
from tests.integration.echo_stack import EchoStack


@pytest.fixture
def stack(sqlite_url: str, valkey_url: str, tmp_path: Path) -> Iterator[EchoStack]:
    """Workers that poll rarely, so that a resume itself makes them claim."""
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, {"OMNI_JOBS_POLL_S": "60"})
    yield stack
    stack.close()


def test_a_paused_stage_claims_nothing_until_it_is_resumed(stack: EchoStack) -> None:
    stack.jobs.pause(StageId(PipelineId("echo", ""), "second"))
    first, second = stack.start("first", "second")
    stack.until(lambda: "second is paused" in second.log.read_text() or None, 60)
    running = stack.submit(first={"delay_s": 1})
    stack.running(running, "first")
    stack.jobs.pause(StageId(PipelineId("echo", ""), "first"))
    stack.until(lambda: "first is paused" in first.log.read_text() or None, 60)
    waits = stack.submit()

    def reached_second() -> bool | None:
        return stack.jobs.get(running).stages[1].status is StageRunState.QUEUED or None

    assert stack.until(reached_second, 60)  # what ran went on
    for job_id, stage in ((running, "second"), (waits, "first")):
        view = stack.jobs.get(job_id)
        assert view.waiting is not None
        assert (view.waiting.reason, view.waiting.stage) == ("paused", stage)
    assert all(worker.process.poll() is None for worker in stack.workers)
    for stage in ("first", "second"):
        stack.jobs.resume(StageId(PipelineId("echo", ""), stage))
        stack.app.broker.ring([f"echo.{stage}"])
    assert {stack.ended(job_id, 30).status for job_id in (running, waits)} == {JobState.COMPLETED}
