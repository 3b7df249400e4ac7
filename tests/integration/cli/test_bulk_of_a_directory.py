"""``omni-jobs submit-bulk DIRECTORY`` against a real API server: a job for each file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from omni_jobs.cli import app
from omni_jobs.settings import Settings
from tests.integration.api_server import SHIPPED, ApiServer
from tests.oracles import samples


@pytest.fixture
def settings(sqlite_settings: Settings, tmp_path: Path) -> Settings:
    """Its echo pipeline takes sounds, too."""
    configs = tmp_path / "stage_configs"
    configs.mkdir()
    echo = (SHIPPED / "echo.yaml").read_text(encoding="utf-8")
    (configs / "echo.yaml").write_text(echo.replace("accepts: [text]", "accepts: [text, audio]"), encoding="utf-8")
    return sqlite_settings.model_copy(update={"stage_configs": configs})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "requests"
    made.mkdir()
    return made


def submit(api: ApiServer, directory: Path, *words: str) -> Result:
    url = f"http://{api.host}:{api.port}"
    return CliRunner().invoke(app, ["submit-bulk", str(directory), *words, "--url", url], env={"COLUMNS": "200"})


def answers(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_file_is_answered_by_its_name(api: ApiServer, directory: Path) -> None:
    body = {"model": "echo", "messages": [{"role": "user", "content": "a \u2028 b\nc"}], "seed": 7}
    (directory / "2 ü.json").write_text(
        json.dumps(body, indent=2, ensure_ascii=False), encoding="utf-8", newline="\r\n"
    )
    (directory / "1.JSON").write_text("\n\n", encoding="utf-8")
    (directory / "3.json").write_text('{"model":\n"echo"', encoding="utf-8")
    (directory / "4.wav").write_bytes(samples.wav(seconds=0.2))
    (directory / ".DS_Store").write_bytes(b"\0")
    (directory / "sub").mkdir()
    result = submit(api, directory, "--text", "What is said?", "--idempotency-key", "k")
    assert (result.exit_code, result.stderr) == (1, "2 accepted, 2 refused\n")
    found = answers(result)
    assert [(each["line"], each["file"]) for each in found] == [
        (1, "1.JSON"),
        (2, "2 ü.json"),
        (3, "3.json"),
        (4, "4.wav"),
    ]
    assert ["error" in each for each in found] == [True, False, True, False]
    assert api.http.get(f"/v1/jobs/{found[1]['id']}").json()["seed"] == 7
    again = answers(submit(api, directory, "--text", "What is said?", "--idempotency-key", "k"))
    assert [each.get("id") for each in again] == [each.get("id") for each in found]
    assert [each.get("created") for each in again] == [None, False, None, False]


def test_a_name_in_no_encoding_is_told(api: ApiServer, directory: Path) -> None:
    name = os.fsdecode(b"caf\xe9.json")
    (directory / name).write_text('{"model": "echo"}', encoding="utf-8")
    (answer,) = answers(submit(api, directory))
    assert answer["file"] == name
    assert answer["error"]["field"] == "messages"


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("notes.txt", [], "notes.txt' is neither a request (.json) nor a sound, a picture or a video"),
        ("a.wav", ["--pipeline", "nope"], "unknown pipeline 'nope'; this server serves: echo"),
    ],
)
def test_what_cannot_be_sent_is_told_before_anything_is(
    api: ApiServer, directory: Path, name: str, words: list[str], says: str
) -> None:
    (directory / "0.json").write_text('{"model": "echo"}', encoding="utf-8")
    (directory / name).write_bytes(b"x")
    result = submit(api, directory, *words)
    assert result.exit_code != 0
    assert says in " ".join(result.stderr.split())
    assert (result.stdout, api.http.get("/v1/jobs").json()["jobs"]) == ("", [])


def test_a_file_that_is_larger_than_any_request(api: ApiServer, directory: Path) -> None:
    with (directory / "a.wav").open("wb") as file:
        file.truncate((1 << 30) + 1)
    result = submit(api, directory)
    assert result.exit_code == 2
    assert "is larger than a request may be" in result.stderr


def test_submit_takes_a_directory_of_files_into_one_message(api: ApiServer, directory: Path, tmp_path: Path) -> None:
    for name in ("b.wav", "a.wav", ".hidden"):
        (directory / name).write_bytes(samples.wav(seconds=0.2))
    url = f"http://{api.host}:{api.port}"
    result = CliRunner().invoke(app, ["submit", "What is said?", "--audio", str(directory), "--url", url])
    assert result.exit_code == 0, result.output
    with api.services.db.begin() as tx:
        (media,) = tx.execute(text("SELECT media FROM jobs")).scalars()
    assert len(json.loads(media)) == 2
    (tmp_path / "empty").mkdir()
    refused = CliRunner().invoke(app, ["submit", "What?", "--audio", str(tmp_path / "empty"), "--url", url])
    assert refused.exit_code == 2
