"""A job goes on with another version of its pipeline, where its stages can; elsewhere the answer says what differs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from omni_jobs.cli import app
from omni_jobs.client import Client
from omni_jobs.errors import Conflict
from omni_jobs.jobs import Claim, Completion, NewWorker
from omni_jobs.settings import Settings
from omni_jobs.states import JobState
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.integration.echo_stack import PIPELINE

TWO = PIPELINE.replace('version: "1"', 'version: "2"').replace(
    "    time_limit_s: 2\n", "    time_limit_s: 2\n    retries: {worker_lost: 7}\n    queue_limit_s: 500\n"
)
RENAMED = (
    PIPELINE.replace('version: "1"', 'version: "3"')
    .replace("  second:\n", "  last:\n")
    .replace("stage: second", "stage: last")
)
MIDDLE = PIPELINE.replace('version: "1"', 'version: "4"').replace(
    "  second:\n    kind: echo\n    processor: echo\n    inputs: {first: bytes}\n",
    "  middle: {kind: echo, processor: echo, inputs: {first: bytes}, produces: bytes}\n"
    "  second:\n    kind: echo\n    processor: echo\n    inputs: {middle: bytes}\n",
)


@pytest.fixture
def settings(database_url: str, valkey_url: str, tmp_path: Path) -> Settings:
    configs = tmp_path / "configs"
    configs.mkdir()
    for number, config in enumerate((PIPELINE, TWO, RENAMED, MIDDLE)):
        (configs / f"{number}.yaml").write_text(config)
    return server_settings(tmp_path, valkey_url, database_url=database_url, stage_configs=configs)


@pytest.fixture
def api(settings: Settings) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


def claimed(api: ApiServer, version: str, stage: str) -> list[Claim]:
    """What a worker of this stage of this version gets to run."""
    echo = api.services.pipelines.find(f"echo@{version}")
    assert echo is not None
    slot = f"{version}.{stage}"
    if all(each.id != slot for each in api.services.jobs.workers()):
        worker = NewWorker(slot, slot, echo.stage_id(stage), "h", 1, 9, echo.version)
        api.services.jobs.register_worker(worker, 60.0)
    return list(api.services.jobs.claim(slot, 9).claims)


def made(api: ApiServer, version: str, claim: Claim) -> None:
    done = Completion(
        claim.stage_run_id,
        claim.attempt,
        f"{version}.{claim.stage}",
        inline_payload=b"x",
        payload_bytes=1,
        result={"text": "x"},
    )
    assert api.services.jobs.report([done])[0].won


def submitted(api: ApiServer, version: str, **fields: Any) -> str:
    body = {"model": f"echo@{version}", "messages": [{"role": "user", "content": "x"}], **fields}
    answer = api.http.post("/v1/jobs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def half_done(api: ApiServer, version: str = "1", **fields: Any) -> str:
    """A job whose first stage has made its payload, and which was cancelled then, because no worker came."""
    job_id = submitted(api, version, **fields)
    [claim] = [each for each in claimed(api, version, "first") if each.job_id == job_id]
    made(api, version, claim)
    assert api.http.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    return job_id


@pytest.mark.parametrize("priority", ["normal", "high"])
def test_what_is_left_of_a_job_runs_on_another_version(api: ApiServer, priority: str) -> None:
    job_id = half_done(api, priority=priority)
    moved = api.http.post(f"/v1/jobs/{job_id}/retry", params={"version": "2"})
    assert moved.status_code == 200, moved.text
    assert (moved.json()["status"], moved.json()["pipeline_version"]) == ("in_progress", "2") or (
        moved.json()["status"] == "queued"
    )
    assert claimed(api, "1", "second") == [], "a worker of its old version got it"
    [claim] = claimed(api, "2", "second")
    assert (claim.job_id, dict(claim.upstream)) == (job_id, {"first": b"x"})
    made(api, "2", claim)
    job = api.services.jobs.get(job_id)
    assert (job.status, job.pipeline_version) == (JobState.COMPLETED, "2")
    assert [run.attempt for run in job.stages] == [1, 1], "its first stage ran again"
    [act] = [each for each in api.services.jobs.acts() if each.action == "retry"]
    assert act.details["version"] == "2"
    # Back again, whole.
    back = api.http.post(f"/v1/jobs/{job_id}/retry", params={"version": "1", "from_stage": "first"})
    assert back.json()["pipeline_version"] == "1"
    assert claimed(api, "2", "first") == []
    [first] = claimed(api, "1", "first")
    made(api, "1", first)
    [second] = claimed(api, "1", "second")
    made(api, "1", second)
    assert api.services.jobs.get(job_id).status is JobState.COMPLETED


def test_its_own_version_is_no_other(api: ApiServer) -> None:
    job_id = half_done(api)
    assert api.http.post(f"/v1/jobs/{job_id}/retry", params={"version": "1"}).status_code == 200
    [claim] = claimed(api, "1", "second")
    assert claim.job_id == job_id


@pytest.mark.parametrize(
    ("version", "from_stage", "said"),
    [
        ("3", None, "second is not in version 3"),
        ("4", None, "second takes bytes of first, in version 4 bytes of middle"),
        ("4", "first", "second takes bytes of first, in version 4 bytes of middle"),
    ],
)
def test_what_differs_is_told_and_nothing_changes(
    api: ApiServer, version: str, from_stage: str | None, said: str
) -> None:
    job_id = half_done(api)
    before = api.services.jobs.get(job_id)
    params = {"version": version} | ({} if from_stage is None else {"from_stage": from_stage})
    refused = api.http.post(f"/v1/jobs/{job_id}/retry", params=params)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["field"]) == (409, "conflict", "version")
    assert said in error["message"]
    assert api.services.jobs.get(job_id) == before


@pytest.mark.parametrize(
    ("version", "status", "code"),
    [
        ("9", 404, "not_found"),
        ("", 404, "not_found"),
        ("x" * 21, 422, "invalid_request"),
        ("2", 409, "version_draining"),
    ],
)
def test_a_version_that_is_not_to_be_had(api: ApiServer, version: str, status: int, code: str) -> None:
    job_id = half_done(api)
    api.http.post("/v1/pipelines/echo@2/drain")
    refused = api.http.post(f"/v1/jobs/{job_id}/retry", params={"version": version})
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert api.services.jobs.get(job_id).status is JobState.CANCELLED


def test_without_the_old_file_nobody_knows(api: ApiServer, settings: Settings) -> None:
    job_id = half_done(api)
    (Path(settings.resolved_stage_configs) / "0.yaml").unlink()
    with serve(settings) as other:
        refused = other.http.post(f"/v1/jobs/{job_id}/retry", params={"version": "2"})
    assert refused.status_code == 409
    assert "the file of version 1 of echo" in refused.json()["error"]["message"]


def test_a_job_that_has_not_ended_stays_where_it_is(api: ApiServer) -> None:
    job_id = submitted(api, "1")
    refused = api.http.post(f"/v1/jobs/{job_id}/retry", params={"version": "2"})
    assert (refused.status_code, "has ended" in refused.json()["error"]["message"]) == (409, True)


def test_the_client_and_the_command(api: ApiServer) -> None:
    url = f"http://{api.host}:{api.port}"
    with Client(url) as client:
        assert client.retry(half_done(api), version="2").pipeline_version == "2"
        with pytest.raises(Conflict, match="is not in version 3"):
            client.retry(half_done(api), version="3")
    done = CliRunner().invoke(app, ["retry", half_done(api), "--version", "2", "--url", url])
    assert done.exit_code == 0, done.output


def test_all_jobs_of_a_version_go_on_with_another(api: ApiServer) -> None:
    def command(*words: str) -> str:
        words = (*words, "--filter", "pipeline=echo@1", "--yes", "--url", f"http://{api.host}:{api.port}")
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, done.output
        return done.output

    moved = [half_done(api), half_done(api), submitted(api, "1")]
    other = half_done(api, "2")
    assert "cancel: 1 of 1 jobs" in command("cancel")
    refused = command("retry", "--version", "3")
    assert "retry: 0 of 3 jobs" in refused
    assert "is not in version 3" in refused
    assert "retry: 3 of 3 jobs" in command("retry", "--version", "2", "--filter", "status=cancelled")
    assert {api.services.jobs.get(job_id).pipeline_version for job_id in moved} == {"2"}
    with Client(f"http://{api.host}:{api.port}") as client:
        assert [job.id for job in client.list(pipeline="echo@2", status=JobState.CANCELLED).jobs] == [other]
        assert client.list(pipeline="echo@1").jobs == []
        assert len(client.list(pipeline="echo").jobs) == 4
