"""A short seeded run of the driver on each database; ``python -m tests.chaos --help`` tells of long ones."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.stock_clients import ANSWERED
from tests.services import missing

ROOT = Path(__file__).parents[2]
UNUSABLE = 3
NOTHING_BECAUSE = {"scale": "the holder", "other_file": "the worker did not"}  # how the reasons of each kind begin


@pytest.mark.long
@pytest.mark.timeout(280)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nothing_is_lost_doubled_or_stuck(database: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = f"-m tests.chaos --database {database} --seed 11 --minutes 2 --faults 5 --every 1 --rate 5 --json {report}"
    done = subprocess.run([sys.executable, *words.split()], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == UNUSABLE:
        missing(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert (found["lost"], found["doubled"], found["stuck"], found["violations"]) == (0, 0, 0, [])
    assert found["jobs"] >= 10
    assert sum(count for outcome, count in found["stock"].items() if outcome.endswith(f": {ANSWERED}")) >= 1
    assert sum(found["faults"].values()) >= 5


@pytest.mark.long
@pytest.mark.timeout(580)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_schema_goes_up_and_back_under_running_jobs(database: str, tmp_path: Path) -> None:
    report_under(database, "migrate", tmp_path)


@pytest.mark.long
@pytest.mark.timeout(580)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_pipeline_goes_on_to_its_next_version_under_running_jobs(database: str, tmp_path: Path) -> None:
    found = report_under(database, "upgrade", tmp_path)
    assert {"echo@1", "echo@2"} <= found["versions"].keys()


def report_under(database: str, fault: str, directory: Path) -> dict[str, Any]:
    """Return the report of a run until this fault and a kill of a worker came about; nothing is lost or doubled."""
    report = directory / "report.json"
    words = f"-m tests.chaos --database {database} --seed 5 --minutes 7 --each 1 --every 2 --rate 5 --json {report}"
    only = ["--only", fault, "--only", "kill_worker"]
    done = subprocess.run([sys.executable, *words.split(), *only], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == UNUSABLE:
        missing(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    assert (found["lost"], found["doubled"], found["stuck"], found["violations"]) == (0, 0, 0, [])
    assert found["faults"][fault] >= 1
    return found


@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_fault_is_counted_where_it_came_about(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = f"-m tests.chaos --database sqlite --seed 3 --minutes 3 --each 1 --every 2 --rate 2 --json {report}"
    only = [word for fault in NOTHING_BECAUSE for word in ("--only", fault)]
    done = subprocess.run([sys.executable, *words.split(), *only], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    for fault, reason in NOTHING_BECAUSE.items():
        assert found["faults"].get(fault, 0) >= 1, found["came_to_nothing"]
        assert all(why.startswith(reason) for why in found["came_to_nothing"].get(fault, ()))
    files = Counter(key.partition(" ")[0] for key in found["workers_by_file"])
    assert max(files.values()) == 2, "a pipeline has its file and the other"


def test_help_teaches() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.chaos", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "python -m tests.chaos --database postgresql" in done.stdout
    assert "exit codes" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(280)
def test_pictures_of_killed_workers_are_those_of_undisturbed_ones(tmp_path: Path) -> None:
    kills = killed(tmp_path, "--pipeline qwen_image --victim worker --times 2")
    assert [kill["alone"] for kill in kills] == [True, False, False, False, False]
    assert any(kill["attempts"] > 1 for kill in kills)


@pytest.mark.long
@pytest.mark.timeout(580)
def test_videos_of_killed_workers_and_engines_are_those_of_undisturbed_ones(tmp_path: Path) -> None:
    kills = killed(tmp_path, "--pipeline wan --company 0 --times 2")
    assert [(kill["victim"], kill["attempts"], kill["is_same"]) for kill in kills] == [
        ("worker", 2, True),
        ("engine", 2, True),
    ]
    assert all(kill["resumed_at"] > 0 for kill in kills)


def killed(directory: Path, words: str) -> list[dict[str, Any]]:
    """Return what became of each job whose denoising was killed; nothing is wrong with any."""
    report = directory / "report.json"
    command = [sys.executable, "-m", "tests.chaos.denoise_kills", *words.split(), "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    kills: list[dict[str, Any]] = json.loads(report.read_text())
    return kills
