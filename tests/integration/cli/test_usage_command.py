"""``omni-jobs usage`` against a real API server."""

import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner, Result

from omni_jobs.cli import app
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer
from tests.integration.served_jobs import completed

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def run(api: ApiServer, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["usage", *arguments, "--url", f"http://{api.host}:{api.port}"])


def test_what_was_used_is_shown_by_what_is_asked_for(api: ApiServer) -> None:
    for _ in range(2):
        completed(api, str(api.http.post("/v1/jobs", json=ECHO).json()["id"]))
    shown = [line.split() for line in run(api).stdout.splitlines()]
    assert [line[:4] for line in shown[:1]] == [["pipeline", "stage", "attempts", "worker"]]
    assert [line[:3] for line in shown[1:3]] == [["echo", "first", "2"], ["echo", "second", "2"]]
    assert shown[3][:2] == ["total", "4"]
    by_day = json.loads(run(api, "--by", "day", "--json").stdout)
    assert by_day["total"]["attempts"] == 4
    assert by_day["rows"][0]["day"] <= str(datetime.now(UTC).date())
    assert json.loads(run(api, "--to", "2000-01-01", "--json").stdout)["rows"] == []
    assert json.loads(run(api, "--pipeline", "none", "--json").stdout)["total"]["attempts"] == 0


def test_wrong_usage_is_told(api: ApiServer) -> None:
    assert run(api, "--by", "colour").exit_code == 2
    refused = run(api, "--from", "yesterday")
    assert (refused.exit_code, "from" in refused.stderr) == (2, True)
