"""A graph that no worker can run is refused at every door, in the same words: check, API, readyz, worker."""

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from omni_jobs.api import readiness
from omni_jobs.api.services import Services
from omni_jobs.cli import app
from omni_jobs.errors import ConfigError
from omni_jobs.settings import Settings
from tests.broken_graphs import BROKEN, GOOD, Broken
from tests.integration.api_server import ApiServer, serve

FILE = "omni.yaml"
ECHO = """\
name: echo
version: "1"
stages:
  only: {kind: echo, processor: echo, produces: text}
outputs:
  text: {stage: only}
"""


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    directory = tmp_path / "stage_configs"
    directory.mkdir()
    (directory / "echo.yaml").write_text(ECHO, encoding="utf-8")
    return directory


def settings_of(configs: Path, database_url: str = "", broker_url: str = "redis://127.0.0.1:1/0") -> Settings:
    return Settings(
        data_dir=configs.parent,
        database_url=database_url or None,
        broker_url=broker_url,  # type: ignore[arg-type]
        stage_configs=configs,
    )


STOPPING = [each for each in BROKEN if each.name != "unknown family"]  # a missing plug-in stops its pipeline alone


@pytest.mark.parametrize("broken", STOPPING, ids=lambda broken: broken.name)
def test_every_door_says_the_same(configs: Path, monkeypatch: pytest.MonkeyPatch, broken: Broken) -> None:
    path = configs / FILE
    path.write_text(broken.text, encoding="utf-8")
    expected = f"{path}:{broken.line}: {broken.field}: {broken.message}"

    checked = CliRunner().invoke(app, ["pipelines", "check", str(path)])
    assert checked.exit_code == 1
    assert expected in checked.stderr.splitlines()

    with pytest.raises(ConfigError) as caught:
        Services(settings_of(configs))
    assert str(caught.value) == expected

    for name, value in settings_of(configs).to_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "workers.app", raising=False)  # another test of this process may have loaded it
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("workers.app")
    assert ended.value.code == f"celery worker: {expected}"


CELERY = ["celery", "-A", "workers.app", "worker", "-P", "custom", "-Q", "echo.only", "-n", "echo.only-1@%h"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["omni_jobs.cli", "api", "--port", "0"], "omni-jobs"),
        (["omni_jobs.cli", "rescuer"], "omni-jobs"),
        (["omni_jobs.cli", "worker", "-p", "echo", "-s", "only"], "omni-jobs"),
        (CELERY, "celery worker"),
    ],
    ids=["api", "rescuer", "worker", "celery"],
)
def test_a_process_ends_its_start_with_one_line(configs: Path, command: list[str], says: str) -> None:
    [broken] = [each for each in BROKEN if each.name == "unknown component"]
    (configs / FILE).write_text(broken.text, encoding="utf-8")
    pool = {"CELERY_CUSTOM_WORKER_POOL": "workers.consumer.pool:StagePool"}
    environment = {**os.environ, **settings_of(configs).to_environment(), **pool}
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr == f"{says}: {configs / FILE}:{broken.line}: {broken.field}: {broken.message}\n"


# A file that is broken later.


@pytest.fixture
def api(
    configs: Path, sqlite_url: str, valkey_url: str, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ApiServer]:
    monkeypatch.setattr(readiness, "_KEPT_S", 0.0)  # each /readyz tells of the files as they are now
    (configs / FILE).write_text(GOOD, encoding="utf-8")
    given = settings_of(configs, sqlite_url, valkey_url)
    served = {"pipelines": ("omni", "echo"), "models": {"omni": tiny_checkpoint}}
    with serve(given.model_copy(update=served)) as server:
        yield server


def ready(api: ApiServer) -> dict[str, Any]:
    answer = api.http.get("/readyz")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_readyz_names_what_was_broken_since_the_start(api: ApiServer, configs: Path) -> None:
    path = configs / FILE
    assert ready(api)["status"] == "ready"
    for broken in BROKEN:
        path.write_text(broken.text, encoding="utf-8")
        found = ready(api)
        assert found["status"] == "degraded"
        assert found["pipelines"]["echo"]["ok"] is True
        error = found["pipelines"]["omni"]["error"]
        assert (error["code"], error["field"]) == (
            "plugin_broken" if broken.name == "unknown family" else "invalid_config",
            broken.field,
        )
        assert error["message"] == f"{path}:{broken.line}: {broken.field}: {broken.message}"
    path.write_text(GOOD.replace("name: omni", "name: other"), encoding="utf-8")
    message = ready(api)["pipelines"]["omni"]["error"]["message"]
    assert message == f"{path}: name: is 'other' now; this process was started with 'omni'"
    path.unlink()
    assert f"{path}: cannot be read" in ready(api)["pipelines"]["omni"]["error"]["message"]
    path.write_text(GOOD, encoding="utf-8")
    assert ready(api)["status"] == "ready"


def test_readyz_looks_only_at_what_is_served(configs: Path, sqlite_url: str, valkey_url: str) -> None:
    (configs / FILE).write_text(GOOD, encoding="utf-8")
    given = settings_of(configs, sqlite_url, valkey_url)
    with serve(given.model_copy(update={"pipelines": ("echo",)})) as api:
        (configs / FILE).write_text(BROKEN[0].text, encoding="utf-8")
        ready = api.http.get("/readyz").json()
        assert (ready["status"], list(ready["pipelines"])) == ("ready", ["echo"])
