"""The pipelines that a server serves."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_jobs.api.services import Services
from omni_jobs.cli import Exit, app
from omni_jobs.errors import ConfigError
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(settings: Settings, tiny_checkpoint: Path) -> Settings:
    return settings.model_copy(update={"models": {"qwen2_5_omni": tiny_checkpoint}})


def listed(api: ApiServer) -> list[str]:
    return [pipeline["name"] for pipeline in api.http.get("/v1/pipelines").json()["pipelines"]]


def test_only_what_is_served_is_offered(settings: Settings) -> None:
    with serve(settings.model_copy(update={"pipelines": ("qwen2_5_omni",)})) as api:
        assert listed(api) == ["qwen2_5_omni"]
        assert list(api.http.get("/readyz").json()["pipelines"]) == ["qwen2_5_omni"]
        assert {load["pipeline"] for load in api.http.get("/v1/status").json()["stages"]} == {"qwen2_5_omni"}
        answer = api.http.post("/v1/jobs", json=ECHO)
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == "unknown pipeline 'echo'; this server serves: qwen2_5_omni"
        kind = {"Content-Type": "application/jsonl"}
        bulk = api.http.post("/v1/jobs/bulk", content=json.dumps(ECHO), headers=kind)
        assert json.loads(bulk.text.splitlines()[0])["error"] == answer.json()["error"]
        assert api.http.post("/v1/jobs", json={**ECHO, "model": "qwen2_5_omni"}).status_code == 202


def test_jobs_of_a_pipeline_that_is_no_longer_served_go_on(settings: Settings) -> None:
    with serve(settings) as api:
        job_id = api.http.post("/v1/jobs", json=ECHO).json()["id"]
    with serve(settings.model_copy(update={"pipelines": ("qwen2_5_omni",)})) as api:
        assert api.http.get(f"/v1/jobs/{job_id}").json()["pipeline"] == "echo"
        assert [job["id"] for job in api.http.get("/v1/jobs").json()["jobs"]] == [job_id]
        assert {load["pipeline"] for load in api.http.get("/v1/status").json()["stages"]} == {"qwen2_5_omni", "echo"}
        api.http.post(f"/v1/jobs/{job_id}/cancel")
        before = api.services.broker.depth("echo.first")
        assert api.http.post(f"/v1/jobs/{job_id}/retry").json()["status"] == "queued"
        api.services.relay.close()  # rings for what waits
        assert api.services.broker.depth("echo.first") == before + 1


def test_a_setting_that_names_none_ends_the_start(settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r"no stage config has the name 'nope'; there are: chat, echo") as caught:
        Services(settings.model_copy(update={"pipelines": ("echo", "nope")}))
    assert caught.value.field == "OMNI_JOBS_PIPELINES"


def test_submit_takes_the_one_that_is_served(settings: Settings) -> None:
    with serve(settings.model_copy(update={"pipelines": ("echo",)})) as api:
        url = f"http://{api.host}:{api.port}"
        done = CliRunner().invoke(app, ["submit", "Hello", "--url", url])
        assert done.exit_code == 0, done.output
        assert api.http.get(f"/v1/jobs/{done.stdout.strip()}").json()["pipeline"] == "echo"
        done = CliRunner().invoke(app, ["submit", "Hello", "--url", url, "--pipeline", "chat"])
        assert done.exit_code == Exit.NOT_FOUND
        assert "this server serves: echo" in done.stderr


def test_submit_names_those_that_are_served(settings: Settings) -> None:
    with serve(settings) as api:
        url = f"http://{api.host}:{api.port}"
        done = CliRunner().invoke(app, ["submit", "Hello", "--url", url], env={"COLUMNS": "200"})
        assert done.exit_code == 2
        assert done.stdout == ""
        assert "name a pipeline: this server serves chat, echo, echo_media, glm_image, qwen2_5_omni" in done.stderr
        assert api.http.get("/v1/jobs").json()["jobs"] == []
        done = CliRunner().invoke(app, ["submit", "Hello", "--url", url, "-p", "echo"])
        assert done.exit_code == 0, done.output
        body = json.dumps(ECHO)
        done = CliRunner().invoke(app, ["submit", "--body", "-", "--url", url], input=body)
        assert done.exit_code == 0, done.output
