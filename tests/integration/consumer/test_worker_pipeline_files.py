"""Workers whose pipeline files differ, side by side: each runs the jobs of its own, whoever pops the doorbells."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.states import JobState
from tests.integration.echo_stack import PIPELINE, EchoStack, EchoWorker

TUNED = PIPELINE.replace("slots: 8", "slots: 5").replace("time_limit_s: 60", "time_limit_s: 50")
OTHER = PIPELINE.replace('version: "1"', 'version: "2"')


@pytest.fixture
def stack(sqlite_url: str, valkey_server: str, tmp_path: Path) -> Iterator[EchoStack]:
    stack = EchoStack(tmp_path, sqlite_url, valkey_server)
    yield stack
    stack.close()


def launch(stack: EchoStack, stage: str, config: str) -> tuple[EchoWorker, Pipeline]:
    """A worker with this pipeline file."""
    configs = stack.directory / f"configs-{len(stack.workers)}"
    configs.mkdir()
    (configs / "echo.yaml").write_text(config)
    before = stack.variables["OMNI_JOBS_STAGE_CONFIGS"]
    stack.variables["OMNI_JOBS_STAGE_CONFIGS"] = str(configs)
    worker = stack.launch(stage)
    stack.variables["OMNI_JOBS_STAGE_CONFIGS"] = before
    return worker, load_pipelines(configs)["echo"]


def test_a_worker_with_another_file_takes_no_job_and_lives_on(stack: EchoStack) -> None:
    other, file = launch(stack, "first", OTHER)
    boot = stack.serving(other).id
    ids = [stack.submit(f"job {n}", ring=False) for n in range(30)]
    for _ in range(20):
        stack.app.broker.ring(["echo.first"])
        stack.until(lambda: stack.app.broker.depth("echo.first") == 0 or None, within_s=60)
    assert not stack.jobs.rescue().queues, "nothing is freed"
    assert stack.serving(other).id == boot, "it was started anew"
    assert other.process.poll() is None
    for job_id in ids:
        job = stack.jobs.get(job_id)
        assert job.status is JobState.QUEUED
        assert job.stages[0].attempt == 0
        assert job.waiting is not None
        assert (job.waiting.stage, job.waiting.pipeline_version) == ("first", "1")
        assert "have another, version 2" in job.waiting.message
    # Workers of the jobs' file come, tuned meanwhile; the other one stays and pops its share of the doorbells.
    first, tuned = launch(stack, "first", TUNED)
    second, _ = launch(stack, "second", TUNED)
    served = {stack.serving(worker).id for worker in (first, second)}
    assert tuned.digest == stack.pipelines["echo"].digest != file.digest
    for job_id in ids:
        job = stack.ended(job_id, within_s=60)
        assert job.status is JobState.COMPLETED
        assert {run.worker for run in job.stages} <= served
        assert [run.attempt for run in job.stages] == [1, 1]
    assert stack.serving(other).id == boot
