"""Workers whose pipeline files differ, side by side: each hears and runs the jobs of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.broker.doorbell import doorbell
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.states import JobState
from tests.integration.api_server import ApiServer, serve
from tests.integration.echo_stack import PIPELINE, START_S, EchoStack, EchoWorker

TUNED = PIPELINE.replace("slots: 8", "slots: 5").replace("time_limit_s: 60", "time_limit_s: 50")
OTHER = PIPELINE.replace('version: "1"', 'version: "2"')
# The next version: its second stage has another name.
NEXT = OTHER.replace("  second:\n", "  last:\n").replace("stage: second", "stage: last")


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
        stack.app.broker.ring(["echo@1.first"])
    with stack.redis() as client:
        client.lpush(f"{stack.prefix}echo@2.first", doorbell("echo@2.first"))
        stack.until(lambda: stack.app.broker.depth("echo@2.first") == 0 or None, within_s=60)
    assert stack.app.broker.depth("echo@1.first") == 8, "its slots; a doorbell of version 1 went to version 2's worker"
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
    # Workers of the jobs' file come, tuned meanwhile; the other one stays.
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


def test_a_worker_with_another_file_of_the_same_version_waits_until_nobody_has_the_old_one(stack: EchoStack) -> None:
    pipeline = stack.pipelines["echo"]
    stack.jobs.tell_versions([(pipeline.id, pipeline.version)])
    job = stack.submit("old", ring=False)
    changed = PIPELINE.replace("  second:\n", "  last:\n").replace("stage: second", "stage: last")
    worker, file = launch(stack, "first", changed)
    stack.until(lambda: "waiting: " in worker.log.read_text() or None, within_s=START_S)
    [line] = {each.partition("waiting: ")[2] for each in worker.log.read_text().splitlines() if "waiting: " in each}
    assert f"version 1 of echo was another file (digest {pipeline.digest[:16]}" in line
    assert f"this one has {file.digest[:16]}" in line
    assert "raise `version`, or put the file back" in line
    assert "the slot is taken" not in worker.log.read_text()
    assert stack.jobs.workers() == []
    stack.jobs.cancel(job)  # nobody has the old file now
    stack.serving(worker)
    assert worker.stop() == 0


def test_a_worker_of_a_version_that_drains_says_what_to_do(stack: EchoStack) -> None:
    pipeline = stack.pipelines["echo"]
    stack.jobs.tell_versions([(pipeline.id, pipeline.version)])
    job = stack.submit("left")
    stack.jobs.set_draining("echo@1", is_draining=True)
    workers = [stack.launch("first"), stack.launch("second")]
    for worker in workers:
        stack.serving(worker)
        [line] = [each for each in worker.log.read_text().splitlines() if "is draining" in each]
        assert "echo@1 is draining: it takes no new jobs, and this worker serves what is left; stop it once" in line
        assert "omni-jobs pipelines drain echo@1 --wait returns" in line
        assert "omni-jobs pipelines serve echo@1" in line
    assert stack.ended(job).status is JobState.COMPLETED, "it serves what is left"


@pytest.fixture
def versions(database_url: str, valkey_server: str, tmp_path: Path) -> Iterator[tuple[EchoStack, ApiServer]]:
    """Two versions of a pipeline in one directory, an API server for both, and no worker."""
    stack = EchoStack(tmp_path, database_url, valkey_server, other_configs=[NEXT])
    try:
        with serve(stack.settings) as api:
            yield stack, api
    finally:
        stack.close()


def test_versions_of_one_directory_run_each_its_own_jobs(versions: tuple[EchoStack, ApiServer]) -> None:
    stack, api = versions

    def submitted(model: str) -> str:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": model}],
            "stages": {"first": {"delay_s": 0.01}},
        }
        answer = api.http.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    shown = api.http.get("/v1/pipelines").json()["pipelines"]
    assert [(each["label"], each["version"]) for each in shown] == [("echo@1", "1"), ("echo", "2")]
    assert {each["id"] for each in api.http.get("/v1/models").json()["data"]} == {"echo", "echo@1"}
    assert api.http.get("/v1/models/echo@2").json()["id"] == "echo"
    refused = api.http.post("/v1/jobs", json={"model": "echo@3", "messages": [{"role": "user", "content": "x"}]})
    assert (refused.status_code, refused.json()["error"]["field"]) == (404, "model")

    jobs = {submitted(model): model for _ in range(20) for model in ("echo", "echo@1", "echo@2")}
    new = [stack.launch("first"), stack.launch("last")]
    for worker in new:
        stack.serving(worker)
    for job_id, model in jobs.items():
        if model != "echo@1":
            assert stack.ended(job_id, within_s=60).status is JobState.COMPLETED
    waits = next(stack.jobs.get(job_id) for job_id, model in jobs.items() if model == "echo@1")
    assert waits.waiting is not None
    assert (waits.waiting.reason, waits.waiting.pipeline_version) == ("no_worker", "1")

    old = [stack.launch("first", label="echo@1"), stack.launch("second", label="echo@1")]
    served = {stack.serving(worker).id for worker in old}
    for job_id, model in jobs.items():
        job = stack.ended(job_id, within_s=60)
        assert job.status is JobState.COMPLETED
        assert job.result is not None
        assert job.result["text"] == model
        assert [run.attempt for run in job.stages] == [1, 1]
        assert (job.pipeline, job.pipeline_version) == ("echo", "1" if model == "echo@1" else "2")
        assert [run.name for run in job.stages] == ["first", "second" if model == "echo@1" else "last"]
        assert ({run.worker for run in job.stages} <= served) is (model == "echo@1")
    of_old = next(job_id for job_id, model in jobs.items() if model == "echo@1")
    forked = api.http.post(f"/v1/jobs/{of_old}/fork", json={"from_stage": "first", "seed": 8})
    assert forked.status_code == 202, forked.text
    assert stack.ended(forked.json()["id"], within_s=60).pipeline_version == "1", "a fork is of its job's version"


def test_a_stage_that_one_version_has_is_paused_by_its_name(versions: tuple[EchoStack, ApiServer]) -> None:
    _, api = versions
    for stage, status in (("second", 200), ("last", 200), ("first", 200), ("third", 404)):
        assert api.http.post(f"/v1/pipelines/echo/stages/{stage}/pause").status_code == status, stage
        assert api.http.post(f"/v1/pipelines/echo/stages/{stage}/resume").status_code == status
