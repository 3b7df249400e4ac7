"""Every benchmark runs and writes what it found; how fast is not a test's business."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


UNITS_OF_CHANCE = ("changes", "moves", "intervals")  # there may be none in a short run


def figures_of(tmp_path: Path, module: str, *arguments: str) -> dict[str, dict[str, Any]]:
    """The figures that ``python -m benchmarks.MODULE --quick`` wrote, by name."""
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", f"benchmarks.{module}", "--quick", *arguments, "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    figures = {figure["name"]: figure for figure in json.loads(found.read_text(encoding="utf-8"))}
    for figure in figures.values():
        assert figure.keys() == {"name", "value", "unit", "runs", "target", "met", "machine"}
        # A stage that does nothing may end within a millisecond, which is all that SQLite's clock tells.
        assert figure["value"] > 0 or ", stage " in figure["name"] or figure["unit"] in UNITS_OF_CHANCE
    return figures


def test_payloads(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "payloads", "--quick", "--directory", tmp_path)
    targets = {name: figure["target"] for name, figure in figures.items() if figure["target"] is not None}
    assert targets == {
        "Payload.write / raw write": 1.3,
        "put with digest / raw write": 1.3,
        "read and decode / mmap and digest": 1.2,
    }
    for name in ("written: safetensors", "read with a digest: torch.load", "read with a digest: msgpack"):
        assert figures[name]["runs"]


def test_media(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "media")
    assert figures["PNG of 1 megapixel, decode: wall more"]["target"] == 5.0


def test_the_control_plane(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "control_plane", "--database", "sqlite")
    assert {"sqlite, jobs/s", "sqlite / celery_chain", "sqlite / dramatiq_pipeline"} <= set(figures)


def test_submits(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "submit", "--database", "sqlite")
    assert {"sqlite: 32 clients, submits/s", "sqlite: a bulk of 500"} <= set(figures)


def test_a_backlog(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "backlog", "--database", "sqlite")
    assert {
        "sqlite: claims, 1 worker, 1024 / 256",
        "sqlite: claims, 2 workers, 1024 / 256",
        "sqlite: a submit's p99, 1024 / 256",
        "sqlite: broker, bytes beside 1024 jobs",
        "sqlite: a round of the rescuer, 1024 / 256",
    } <= set(figures)


def test_fairness(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "fairness", "--database", "sqlite")
    counted = {name: figure["met"] for name, figure in figures.items() if "batches" in name or "weights" in name}
    assert {
        "sqlite: batches until a job of B behind 500 of A, p99",
        "sqlite: weights 3:1, shares of 400 stage runs, lowest",
        "sqlite: batches until a job of each of 100 tenants behind 500",
    } <= set(counted)
    assert False not in counted.values()  # they count batches, whatever the machine's speed
    assert {
        "sqlite, 64 slots, 8 kept: high, submit → started, p99, before 500 low ones of 1 to 3 s / idle",
        "sqlite, 512 slots, 8 kept: high, submit → started, p99, before 500 low ones that do nothing / idle",
        "sqlite: flushed broker: stage runs until a job of each of 100 tenants",
    } <= set(figures)


def test_several(tmp_path: Path) -> None:
    """``benchmarks.all`` runs these two as each would run by itself."""
    figures = figures_of(tmp_path, "all", "--only", "startup", "--only", "idle")
    assert {"startup: omni-jobs --help", "idle: sqlite: submit → started, p50"} <= set(figures)


def test_the_dashboard(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "dashboard", "--database", "sqlite")
    pages = {"sqlite, operator: /, p95", "sqlite, operator: /jobs, p95", "sqlite, a tenant: /jobs/{id}, p95"}
    assert pages | {"sqlite: 4 tabs, of a core", "sqlite: 4 open jobs, of a core"} <= set(figures)


def test_migrations(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "migrations", "--database", "sqlite")
    assert {"sqlite, back, all", "sqlite, forward to 0006: longest wait of a writer", "sqlite, forward, all"} <= set(
        figures
    )


def test_pages_in_a_browser(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "pages")
    assert {f"{path}, whole in the browser" for path in ("/", "/jobs", "/jobs/{id}", "/try", "/audit")} <= set(figures)


def test_open_streams(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "streams", "--database", "sqlite")
    assert {"sqlite: 20 open streams, of a core", "sqlite: from a token to the client's event, p50"} <= set(figures)


def test_the_hand_off(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "handoff", "--store", "s3")
    assert {"s3: hand-off, p50", "s3: whole job, p99", "s3: a read"} <= set(figures)


def test_what_log_lines_and_spans_cost(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "observing", "--database", "sqlite")
    assert {"sqlite: CPU, no lines / lines", "sqlite: CPU, lines / lines and spans"} <= set(figures)


def test_what_a_job_costs(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "costs")
    for load in ("under load", "a trickle"):
        assert {f"{load}: CPU, api", f"{load}: CPU, PostgreSQL", f"{load}: bytes of WAL"} <= set(figures)


def test_hostile_clients(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "hostile")
    assert {
        "attacked: /healthz, p99",
        "a small submit, p99, attacked / idle",
        "the API's memory, peak above its start",
        "the API's memory left alone, above its start",
    } <= set(figures)
    assert figures["hostile requests"]["value"] > 0


def test_estimates(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "estimates")
    assert figures["sqlite: all: intervals"]["value"] > 0
    assert (figures["sqlite: all: held"]["target"], figures["sqlite: all: held, and no more"]["target"]) == (0.75, 0.85)


def test_workers_that_come_and_go(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "scaling", "--database", "sqlite")
    assert figures["sqlite: completed with the right answer / jobs"]["met"]
    assert {"a day, simulated, wait p99", "sqlite: the stack, wait p99", "sqlite: simulated, wait p99"} <= set(figures)
    assert "sqlite: what a stop cost one of them, most / between two snapshots" in figures


def test_a_fleet(tmp_path: Path) -> None:
    """Through PgBouncer, where it is installed."""
    figures = figures_of(tmp_path, "fleet")
    for workers in ("1 worker", "2 workers"):
        assert {f"{workers}: {name}" for name in ("jobs/s", "a claim, p99", "the database's CPU")} <= set(figures)
