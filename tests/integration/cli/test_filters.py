"""``omni-jobs list``, ``cancel``, ``retry`` and ``delete`` with filters, against a real API server."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from omni_jobs.cli import app
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer
from tests.integration.served_jobs import failed

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
SEA = ("--filter", "metadata=project=sea")


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def run(api: ApiServer, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, [*arguments, "--url", f"http://{api.host}:{api.port}"], input=answer)


def submitted(api: ApiServer, **fields: Any) -> str:
    return str(api.http.post("/v1/jobs", json=ECHO | fields).json()["id"])


def test_jobs_that_match_are_listed_counted_and_cancelled_after_a_question(api: ApiServer) -> None:
    ids = [submitted(api, metadata={"project": "sea"}) for _ in range(2)]
    other = submitted(api)
    found = run(api, "list", "--metadata", "project=sea", "--stage", "first", "--created-after", "2020-01-01T00:00:00Z")
    assert (found.exit_code, [each in found.stdout for each in (*ids, other)]) == (0, [True, True, False])
    assert json.loads(run(api, "list", "--created-before", "2020-01-01T00:00:00Z", "--json").stdout)["jobs"] == []

    assert run(api, "cancel", *SEA, "--dry-run").stdout == "2 jobs match\n"
    refused = run(api, "cancel", *SEA, answer="n\n")
    assert (refused.exit_code, "cancel 2 jobs?" in refused.stderr) == (1, True)
    assert {api.services.jobs.get(each).status for each in (*ids, other)} == {"queued"}
    done = run(api, "cancel", *SEA, answer="y\n")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "cancel: 2 of 2 jobs")
    assert [api.services.jobs.get(each).status for each in (*ids, other)] == ["cancelled", "cancelled", "queued"]
    nothing = run(api, "cancel", *SEA)
    assert (nothing.exit_code, nothing.stderr) == (0, "omni-jobs: no job matches\n")


def test_scripts_are_not_asked_and_get_json(api: ApiServer) -> None:
    ids = [submitted(api, metadata={"project": "sea"}) for _ in range(3)]
    for each in ids:
        failed(api, each)
    done = json.loads(run(api, "retry", *SEA, "--filter", "status=failed", "--yes", "--json").stdout)
    assert (done["action"], done["matched"], done["changed"], done["next_cursor"]) == ("retry", 3, 3, None)
    for each in ids:
        failed(api, each)
    assert (
        json.loads(run(api, "delete", "--filter", "error_code=model_error", "--yes", "--json").stdout)["changed"] == 3
    )
    assert api.services.jobs.list().jobs == []


def test_a_job_that_is_advanced_is_told_with_why_it_waits(api: ApiServer) -> None:
    first, second = submitted(api), submitted(api)
    told = run(api, "advance", second)
    assert (told.exit_code, told.stdout) == (0, "queued: no worker of stage first serves\n")
    assert json.loads(run(api, "advance", first, "--json").stdout)["id"] == first


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--status", "nope"],
        ["list", "--created-after", "yesterday"],
        ["cancel", "--filter", "status=nope", "--yes"],
        ["retry", "--filter", "created_before=now", "--dry-run"],
        ["usage", "--from", "yesterday"],
        ["submit", "-p", "echo", "Hello", "--param", "first.nope=1"],
    ],
    ids=" ".join,
)
def test_what_the_server_calls_wrong_is_wrong_usage_too(api: ApiServer, arguments: list[str]) -> None:
    assert run(api, *arguments).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["cancel"],
        ["retry"],
        ["delete"],
        ["cancel", "job-1", *SEA],
        ["delete", "job-1", "--dry-run"],
        ["retry", *SEA, "--wait", "--yes"],
        ["cancel", "--filter", "metadata=x"],
        ["cancel", "--filter", "colour=red"],
        ["cancel", "--filter", "status=queued", "--filter", "status=failed"],
        ["list", "--metadata", "project"],
    ],
)
def test_wrong_usage_is_told_before_anything_is_sent(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, [*arguments, "--url", "http://127.0.0.1:9"]).exit_code == 2
