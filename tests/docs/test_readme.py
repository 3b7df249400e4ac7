"""What README.md and the other pages show must exist: help, requests, files, settings, Python code.

Commands are read in test_commands.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from omni_jobs.cli import app
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.requests import JobRequest
from omni_jobs.settings import Settings
from omni_jobs.views import JobView
from tests.docs.pages import PAGES, ROOT, blocks, pages
from tests.docs.shell import commands

README = PAGES["README.md"]
OPERATIONS = pages("operations")
ALL = "\n".join(PAGES.values())
SHOWN = {each.words[1:2] for each in commands() if each.words[0].endswith("omni-jobs")}
SECRET_FILES = {"BROKER_URL_FILE", "DATABASE_URL_FILE", "API_KEY_FILE"}  # read in test_settings_secrets


@pytest.mark.parametrize("words", sorted(SHOWN))
def test_every_command_has_help(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0


def test_the_requests_are_valid() -> None:
    bodies: list[Any] = [json.loads(body) for body in re.findall(r"-d '(\{.*?\})'", README, re.DOTALL)]
    bodies += [body for block in blocks(README, "json") if "messages" in (body := json.loads(block))]
    assert len(bodies) == 2
    for body in bodies:
        JobRequest.model_validate(body)


def test_the_answer_is_a_job() -> None:
    answers = [body for block in blocks(README, "json") if "id" in (body := json.loads(block))]
    assert len(answers) == 1
    names = {"queued_at", "reason", "progress", "started_at", "finished_at", "payload_bytes", "worker"}
    stages = [dict.fromkeys(names) | stage for stage in answers[0]["stages"]]
    JobView.model_validate({"error": None} | answers[0] | {"stages": stages})
    assert set(answers[0]) <= set(JobView.model_fields)


def test_the_python_is_python() -> None:
    for block in blocks(README, "python"):
        compile(block, "README.md", "exec")


def test_scripts_are_there() -> None:
    found = set(re.findall(r"scripts/[a-z]+(?:-[a-z]+)*(?![a-z.-])", ALL))
    assert found >= {"scripts/demo", "scripts/test", "scripts/setup"}
    for script in found:
        assert (ROOT / script).stat().st_mode & 0o100


@pytest.mark.parametrize("name", sorted(set(re.findall(r"OMNI_JOBS_([A-Z0-9_]*[A-Z0-9])", ALL))))
def test_settings_exist(name: str) -> None:
    assert name == "URL" or name in SECRET_FILES or name.lower() in Settings.model_fields


def test_the_celery_line_is_the_one_the_command_prints() -> None:
    shown = next(line for line in OPERATIONS.splitlines() if line.startswith("CELERY_CUSTOM_WORKER_POOL="))
    printed = CliRunner().invoke(app, ["worker", "-p", "qwen2_5_omni", "-s", "thinker", "--dry-run"])
    assert printed.output.strip() == shown


def test_the_stage_config_of_a_remote_server_is_right(tmp_path: Path) -> None:
    (block,) = blocks(README, "yaml")
    (tmp_path / "remote_chat.yaml").write_text(block, encoding="utf-8")
    pipeline = load_pipeline(tmp_path / "remote_chat.yaml")
    assert pipeline.name in README.partition("omni-jobs up --pipeline remote_chat")[1]


ASSIGNED = re.findall(r"(?:^|[ `(])OMNI_JOBS_([A-Z0-9_]+)=('.*?'|[^\s`]+)", ALL, re.MULTILINE)


@pytest.mark.parametrize(("name", "value"), sorted({each for each in ASSIGNED if each[0] != "URL"}))
def test_values_of_the_docs_are_valid(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (value,) = shlex.split(value)
    if name.lower() not in Settings.model_fields:  # a file that holds the value
        assert name.endswith("_FILE")
        assert name.removesuffix("_FILE").lower() in Settings.model_fields
        return
    monkeypatch.setenv(f"OMNI_JOBS_{name}", value)
    assert name.lower() in Settings().model_fields_set


def test_the_servers_of_the_docs_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = re.findall(r"OMNI_JOBS_SERVERS='(.*?)'", ALL)
    assert len(shown) >= 2
    for value in shown:
        monkeypatch.setenv("OMNI_JOBS_SERVERS", value)
        assert set(Settings().servers) == {"local"}
