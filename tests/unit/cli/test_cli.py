import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from omni_jobs.broker import worker_command as worker_command_module
from omni_jobs.cli import Exit, app
from omni_jobs.cli.checkpoints import chosen_pipelines
from omni_jobs.cli.exits import exit_code
from omni_jobs.client import repeats
from omni_jobs.errors import ConfigError, DatabaseUnavailable, ModelMissing, PluginBroken, ServerBusy, VersionChanged
from omni_jobs.settings import Settings

CONFIGS = Path(__file__).parents[3] / "stage_configs"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "PAUSES_S", (0.01,))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OMNI_JOBS_STAGE_CONFIGS", str(CONFIGS))


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


_ALL: Any = get_command(app).commands  # type: ignore[attr-defined]
GROUPS = [[name] for name, each in _ALL.items() if hasattr(each, "commands")]
COMMANDS = [[name] for name in _ALL] + [[name, each] for [name] in GROUPS for each in _ALL[name].commands]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command: Sequence[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def examples(command: Sequence[str]) -> list[list[str]]:
    """The arguments of each line of a command's help that shows it in use."""
    found: Any = get_command(app)
    for name in command:
        found = found.commands[name]
    lines = [line for line in (found.help or "").splitlines() if "omni-jobs " in line and line.startswith("  ")]
    plain = [re.sub(r"<\(.*?\)", "/dev/null", line.partition("omni-jobs ")[2]) for line in lines]
    words = [shlex.split(line, comments=True) for line in plain]
    return [each[: each.index(">")] if ">" in each else each for each in words]


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in GROUPS], ids=" ".join)
def test_every_command_s_help_shows_it_in_use(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By examples that the command understands."""
    monkeypatch.chdir(tmp_path)
    Path("pictures").mkdir()
    for name in ("question.wav", "prompt.safetensors", "jobs.jsonl"):
        Path(name).touch()
    assert examples(command), command
    for words in examples(command):
        assert words[: len(command)] == command
        parsed: Any = get_command(app)
        for name in command:
            parsed = parsed.commands[name]
        with parsed.make_context(command[-1], words[len(command) :]):
            pass  # closes the files that it opened


def test_the_exit_codes_are_in_the_help() -> None:
    text = run("--help").output
    for code in (Exit.FAILED, Exit.UNREACHABLE, Exit.NOT_FOUND, Exit.TIMEOUT, Exit.CANCELLED, Exit.EXPIRED):
        assert f"\n   {code}  " in text


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "sqlalchemy", "celery", "fastapi", "boto3", "numpy", "workers")
    code = f"""
import sys
import time
from typer.testing import CliRunner
from omni_jobs.cli import app
CliRunner().invoke(app, ["--help"])
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_check_says_what_is_well(tmp_path: Path) -> None:
    result = run("pipelines", "check", *(str(path) for path in sorted(CONFIGS.glob("*.yaml"))))
    assert result.exit_code == 0
    assert "qwen2_5_omni 1, thinker → talker → code2wav, digest e7fe4140c44abf06\n" in result.output


def test_check_names_file_line_and_field_of_every_wrong_file(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    text = (CONFIGS / "echo.yaml").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    line = next(number for number, each in enumerate(lines, 1) if each.startswith("    slots: "))
    lines[line - 1] = "    slotz: 64\n"
    wrong.write_text("".join(lines), encoding="utf-8")
    result = run("pipelines", "check", str(wrong), str(tmp_path / "missing.yaml"), str(CONFIGS / "echo.yaml"))
    assert result.exit_code == 1
    assert f"{wrong}:{line}: stages.first.slotz: unknown key" in result.output
    assert f"{tmp_path / 'missing.yaml'}: cannot be read" in result.output
    assert "echo.yaml: ok" in result.output


def test_check_refuses_two_files_of_one_version(tmp_path: Path) -> None:
    """As a start does, when they are in one directory."""
    shutil.copy(CONFIGS / "echo.yaml", tmp_path / "other.yaml")
    result = run("pipelines", "check", str(CONFIGS / "echo.yaml"), str(tmp_path / "other.yaml"))
    assert result.exit_code == 1
    assert f"{tmp_path / 'other.yaml'}: version: {CONFIGS / 'echo.yaml'} is version 1 of echo already" in result.output


def test_a_503_that_does_not_pass_is_no_server_that_does_not_answer() -> None:
    """Otherwise a script that tries again at 3 tries for ever."""
    lasting = (VersionChanged, PluginBroken, ModelMissing)
    assert {exit_code(kind("no")) for kind in lasting} == {Exit.FAILED}
    assert {exit_code(kind("no")) for kind in (DatabaseUnavailable, ServerBusy)} == {Exit.UNREACHABLE}


def test_an_api_whose_port_is_taken_has_failed_to_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "omni_jobs.cli", "api", "--port", str(taken.getsockname()[1])]
        environment = os.environ | {"OMNI_JOBS_DATA_DIR": str(tmp_path / "data")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "error while attempting to bind on address" in done.stdout + done.stderr
    assert done.returncode == Exit.FAILED


def test_a_worker_of_a_pipeline_that_is_not_served_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It works off the jobs that were taken before."""
    monkeypatch.setenv("OMNI_JOBS_PIPELINES", "chat")
    assert run("worker", "-p", "echo", "-s", "first", "--dry-run").exit_code == 0


def test_list() -> None:
    assert "thinker → talker → code2wav" in run("pipelines", "list").output
    listed = json.loads(run("pipelines", "list", "--json").output)
    named = [pipeline["name"] for pipeline in listed]
    assert named == [
        "chat",
        "echo",
        "echo_media",
        "glm_image",
        "qwen2_5_omni",
        "qwen2_5_vl",
        "qwen3_omni",
        "qwen_image",
        "qwen_image_edit",
        "speech",
        "transcribe",
        "upscale",
        "voice",
        "wan",
        "wan_i2v",
    ]


def test_the_list_says_which_pipelines_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def served() -> list[str]:
        return [each["name"] for each in json.loads(run("pipelines", "list", "--json").output) if each["served"]]

    assert len(served()) == 15, "all of them"
    monkeypatch.setenv("OMNI_JOBS_PIPELINES", "echo,chat@1")
    assert served() == ["chat", "echo"]
    said = {line.split()[0]: line.split()[1:3] for line in run("pipelines", "list").output.splitlines()}
    assert (said["pipeline"], said["chat"], said["speech"]) == (["version", "served"], ["1", "yes"], ["1", "no"])


def test_the_worker_command_is_stock_celery() -> None:
    result = run("worker", "-p", "qwen2_5_omni", "-s", "thinker", "--slot", "thinker-2@%h", "-c", "3", "--dry-run")
    assert result.exit_code == 0
    assert result.output == (
        "CELERY_CUSTOM_WORKER_POOL=workers.consumer.pool:StagePool "
        "celery -A workers.app worker -P custom -Q qwen2_5_omni.thinker -n thinker-2@%h -c 3 "
        "--without-gossip --without-mingle --heartbeat-interval 10 -l INFO\n"
    )


def test_a_worker_of_nothing() -> None:
    assert run("worker", "-p", "nope", "-s", "x").exit_code == Exit.NOT_FOUND
    result = run("worker", "-p", "echo", "-s", "third")
    assert result.exit_code == Exit.NOT_FOUND
    assert "it has first, second" in result.output


def test_a_worker_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_command_module, "find_spec", lambda name: find_spec(name) if name == "workers" else None)
    result = run("worker", "-p", "qwen2_5_omni", "-s", "talker")
    assert result.exit_code == 1
    assert "pip install 'omni-jobs[worker-cuda]'" in result.output


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["status", "job-1"],
        ["list", "--error-code", "quarantined"],
        ["cancel", "job-1"],
        ["retry", "job-1", "--from-stage", "second"],
        ["fork", "job-1", "--from", "second", "--set", "second.delay_s=1"],
        ["delete", "job-1", "job-2"],
        ["events", "job-1", "--json"],
        ["result", "job-1"],
        ["submit", "Hello", "--cancel-after", "15m"],
    ],
    ids=" ".join,
)
def test_no_server(command: Sequence[str]) -> None:
    result = run(*command, "--url", NOWHERE)
    assert result.exit_code == Exit.UNREACHABLE
    assert result.stdout == ""
    asked = "pipelines" if command[0] == "submit" else "jobs"
    assert f"omni-jobs: no answer from {NOWHERE}/v1/{asked}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ([], "a text, a file or --body is needed"),
        (["Hello", "--body", "x.json"], "not both"),
        (["Hello", "--param", "temperature=1"], "is not STAGE.NAME=VALUE"),
        (["Hello", "--param", "thinker.temperature"], "is not NAME=VALUE"),
        (["Hello", "--metadata", "a"], "is not NAME=VALUE"),
        (["Hello", "--audio", "/does/not/exist.wav"], "does not exist"),
        (["Hello", "--seed", "-1"], "--seed"),
    ],
)
def test_wrong_usage(arguments: list[str], about: str) -> None:
    result = run("submit", "--url", NOWHERE, *arguments)
    assert result.exit_code == 2
    assert about in result.output


@pytest.mark.parametrize(("body", "about"), [("{", "is not JSON"), ("[]", "is not a JSON object")])
def test_a_body_that_is_none(body: str, about: str) -> None:
    result = run("submit", "--url", NOWHERE, "--body", "-", stdin=body)
    assert result.exit_code == 2
    assert about in result.output


def test_a_body_that_cannot_be_read(tmp_path: Path) -> None:
    result = run("submit", "--url", NOWHERE, "--body", str(tmp_path / "none.json"))
    assert (result.exit_code, result.output) == (1, f"omni-jobs: {tmp_path}/none.json: No such file or directory\n")


@pytest.mark.parametrize(
    ("arguments", "about", "code"),
    [
        (["--pipeline", "nope"], "unknown pipeline 'nope'", Exit.NOT_FOUND),
        (["--pipeline", "qwen2_5_omni"], "needs a checkpoint directory: --model PATH", Exit.FAILED),
        (["--model", "/does/not/exist"], "no such checkpoint directory", Exit.FAILED),
        (["--pipeline", "echo", "--model", "/tmp"], "name its pipeline", 2),
        (["--model", "/tmp"], "config.json: the checkpoint lacks this file", Exit.FAILED),
    ],
)
def test_up_refuses_what_cannot_run(tmp_path: Path, arguments: list[str], about: str, code: int) -> None:
    result = run("up", "--data-dir", str(tmp_path / "data"), *arguments)
    assert result.exit_code == code
    assert about in result.output
    assert not (tmp_path / "data").exists()


def test_up_tells_from_the_checkpoint_which_pipeline_runs_it(tiny_checkpoint: Path, tiny_causal_lm: Path) -> None:
    omni, chat = str(tiny_checkpoint), str(tiny_causal_lm)
    for given, expected in (
        ([omni], {"qwen2_5_omni": tiny_checkpoint}),
        ([chat], {"chat": tiny_causal_lm}),
        ([omni, chat], {"qwen2_5_omni": tiny_checkpoint, "chat": tiny_causal_lm}),
        ([f"chat={chat}"], {"chat": tiny_causal_lm}),
    ):
        chosen, models = chosen_pipelines(Settings(), [], given)
        assert models == expected
        assert set(chosen) == set(expected)
    chosen, _ = chosen_pipelines(Settings(models={"chat": tiny_causal_lm}), [], [])
    assert chosen == ["chat"]
    assert chosen_pipelines(Settings(), [], []) == (["echo"], {})


def test_up_serves_what_the_setting_names(tiny_causal_lm: Path) -> None:
    settings = Settings(pipelines=("chat",))
    assert chosen_pipelines(settings, [], [str(tiny_causal_lm)]) == (["chat"], {"chat": tiny_causal_lm})
    assert chosen_pipelines(settings, ["echo"], [])[0] == ["echo"]
    with pytest.raises(ConfigError, match="no stage config has the name 'nope'"):
        chosen_pipelines(Settings(pipelines=("nope",)), [], [])


def test_up_refuses_a_checkpoint_of_another_kind(tiny_causal_lm: Path, tmp_path: Path) -> None:
    other = tmp_path / "bert"
    other.mkdir()
    (other / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}', encoding="utf-8")
    result = run("up", "--data-dir", str(tmp_path / "data"), "--model", str(other))
    assert result.exit_code == 2
    assert "name its pipeline" in result.output
    result = run("up", "--data-dir", str(tmp_path / "data"), "--model", f"qwen2_5_omni={tiny_causal_lm}")
    assert result.exit_code == Exit.FAILED
    assert "chat template" in result.output or "thinker_config" in result.output


@pytest.mark.parametrize(
    ("name", "value", "about"),
    [
        ("OMNI_JOBS_API_PORT", "many", "OMNI_JOBS_API_PORT: Input should be a valid integer"),
        ("OMNI_JOBS_MODELS", "{", 'error parsing value for field "models"'),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, about: str) -> None:
    monkeypatch.setenv(name, value)
    result = run("up")
    assert result.exit_code == Exit.FAILED
    assert about in result.stderr


def test_storage_prepare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMNI_JOBS_DATA_DIR", str(tmp_path / "data"))
    for _ in range(2):
        assert run("storage", "prepare").output.strip() == f"{(tmp_path / 'data/objects').as_uri()} takes objects"
    monkeypatch.setenv("OMNI_JOBS_STORAGE_URL", "file:///proc/none")
    begin = time.monotonic()
    result = run("storage", "prepare", "--wait-for", "1.5")
    assert result.exit_code == Exit.UNREACHABLE
    assert time.monotonic() - begin >= 1.5
    assert "asked again for up to 1.5 s" in result.stderr


def test_prune_without_a_schema(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMNI_JOBS_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.sqlite'}")
    monkeypatch.setenv("OMNI_JOBS_DATA_DIR", str(tmp_path))
    result = run("prune")
    assert result.exit_code == Exit.UNREACHABLE
    assert "run omni-jobs migrate" in result.stderr


def test_prune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMNI_JOBS_DATA_DIR", str(tmp_path))
    assert run("migrate").exit_code == 0
    result = run("prune", "--json")
    assert run("prune").output.strip().endswith("0 objects, 0 orphans, 0 sessions, 0 days, 0 acts, 0 actions gone")
    assert set(json.loads(result.output)) == {
        *("payloads", "inputs", "artifacts", "jobs", "events", "objects", "orphans"),
        *("sessions", "days", "acts", "actions"),
    }


def test_the_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omni_jobs.cli", "status", "--url", NOWHERE], capture_output=True, text=True
    )
    assert done.returncode == Exit.UNREACHABLE
    assert "Traceback" not in done.stderr


def test_the_installed_command() -> None:
    command = shutil.which("omni-jobs", path=str(Path(sys.executable).parent))
    assert command is not None
    done = subprocess.run([command, "status", "--url", NOWHERE], capture_output=True, text=True)
    assert done.returncode == Exit.UNREACHABLE
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["api", "--host", "0.0.0.0", "--port", "0"], ["up", "--pipeline", "echo"]])
def test_no_server_for_other_machines_starts_without_a_word_on_keys(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_JOBS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("OMNI_JOBS_API_HOST", "0.0.0.0")
    result = run(*command)
    assert result.exit_code == Exit.FAILED
    assert "OMNI_JOBS_AUTH: set it to keys, proxy or off" in result.stderr


def test_an_empty_url_is_no_default_server() -> None:
    """It comes of a shell's variable that is not set."""
    result = run("cancel", "job-1", "--url", "")
    assert result.exit_code == 1
    assert result.stderr.startswith("omni-jobs: --url: not http")


@pytest.mark.parametrize("url", ["http://u:sekret@[::bad", "sekret", "http://u:sekret@host:port", "http://[::1]80"])
@pytest.mark.parametrize("by_option", [True, False])
def test_a_wrong_url_of_the_api_names_where_it_came_from(url: str, by_option: bool) -> None:
    arguments = ["status", *(["--url", url] if by_option else [])]
    result = CliRunner().invoke(app, arguments, env={"OMNI_JOBS_URL": None if by_option else url})
    assert result.exit_code == 1
    assert result.stderr.startswith(f"omni-jobs: {'--url' if by_option else 'OMNI_JOBS_URL'}: ")
    assert "sekret" not in result.output
    assert result.stderr.count("\n") == 1


def test_a_command_with_a_url_tells_of_a_misspelt_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_JOBS_API_KYE", "secret")
    lines = run("list", "--url", NOWHERE).stderr.splitlines()
    assert lines[0] == "omni-jobs: nothing reads the variable OMNI_JOBS_API_KYE: is OMNI_JOBS_API_KEY meant?"
    assert len(lines) == 2


@pytest.mark.parametrize("command", [["events", "job-1"], ["submit", "Hello", "-p", "x"], ["list"]])
def test_no_error_shows_the_password_of_the_url(command: list[str]) -> None:
    result = run(*command, "--url", NOWHERE.replace("//", "//joe:sekret@"))
    assert result.exit_code == Exit.UNREACHABLE
    assert f"omni-jobs: no answer from {NOWHERE}/v1/" in result.stderr
    assert "sekret" not in result.output
