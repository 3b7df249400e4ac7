"""What ``omni-jobs top`` shows, on terminals of several sizes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from omni_jobs.cli.options import TopPart
from omni_jobs.cli.top_screen import TopScreen
from omni_jobs.views import Status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SLOT = "qwen2_5_omni.thinker-1@a-host-with-a-long-name.internal"


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def load(stage: str, **more: Any) -> dict[str, Any]:
    nothing = {"pending": 0, "queued": 0, "running": 0, "workers": 0, "slots": 0, "paused": False}
    return {"pipeline": "qwen2_5_omni", "stage": stage, **nothing, **more}


def worker(slot: str, renewed_s: float, lease_s: float) -> dict[str, Any]:
    found = {"id": slot, "slot": slot, "pipeline": "qwen2_5_omni", "stage": "thinker", "host": "h", "pid": 7}
    found |= {"slots": 32, "running": 31, "pipeline_version": "1", "pipeline_digest": "d", "started_at": ago(50_000)}
    return {**found, "renewed_at": ago(renewed_s), "lease_until": ago(-lease_s)}


def job(number: int, status: str, *stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = {"id": f"job-{number:032x}", "pipeline": "qwen2_5_omni", "status": status, "created_at": ago(75)}
    found |= {"started_at": None, "finished_at": None, "stages": list(stages), "waiting": None, "warnings": []}
    return {**found, "artifacts": [], "pictures": [], "error": None, **more}


def stage(name: str, status: str, progress: dict[str, Any] | None = None) -> dict[str, Any]:
    found = {"name": name, "status": status, "attempt": 1, "reason": None, "progress": progress, "errors": []}
    return {**found, "payload_bytes": None, "worker": None, "queued_at": None, "started_at": None, "finished_at": None}


STATUS = {
    "at": NOW.isoformat(),
    "jobs": {"queued": 123_456, "in_progress": 2},
    "stages": [
        load("idle", workers=1, slots=4),
        load("nobody"),
        load("code2wav", queued=4),
        load("thinker", queued=123_456, running=32, slots=32, workers=1),
        load("talker", running=1, slots=16, workers=2),
        load("held", workers=1, slots=4, paused=True),
    ],
    "workers": [worker(SLOT, 0.6, 9.4), worker("late@h", 7.0, 3.0)],
    "recent": [
        job(
            1,
            "in_progress",
            stage("thinker", "succeeded"),
            stage("talker", "running", {"done": 12, "total": 48, "unit": "tokens"}),
        ),
        job(2, "failed", stage("thinker", "failed"), error={"code": "time_limit", "message": "m"}, finished_at=ago(65)),
        *(job(number, "queued", stage("thinker", "queued")) for number in range(3, 30)),
    ],
    "has_session": False,
}


def shown(width: int, status: dict[str, Any] = STATUS, **options: Any) -> list[str]:
    console = Console(width=width, color_system=None, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(TopScreen(Status.model_validate(status), **options))
    return [line.rstrip() for line in capture.get().splitlines()]


def cells(lines: list[str], first: str) -> list[str]:
    """The words of the one line that begins so."""
    [line] = [line for line in lines if line.startswith(first)]
    return line.removeprefix(first).split()


def test_a_stage_says_why_it_does_not_get_on_and_those_that_stand_still_come_first() -> None:
    stages = [*STATUS["stages"], load("full-stop", queued=2, workers=1, slots=4, paused=True)]  # type: ignore[misc]
    stages += [load("unclaimed", queued=1, workers=1, slots=4)]
    stages += [load("starting", queued=1), load("drained", queued=1, drained=2), load("broken", queued=1, down=1)]
    loads = {"reason": "loading_model", "stage": "starting", "pipeline_version": "1", "pipeline_digest": "d"}
    waiting = job(30, "queued", stage("starting", "queued"), waiting={**loads, "message": "m"})
    lines = shown(99, {**STATUS, "stages": stages, "recent": [waiting]}, parts=[TopPart.OVERVIEW])
    rows = [line.removeprefix("qwen2_5_omni.").split(maxsplit=5) for line in lines[3:]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("code2wav", "no worker"),
        ("full-stop", "paused"),
        ("unclaimed", "waiting"),
        ("starting", "loads the model"),
        ("drained", "drained"),
        ("broken", "engine down"),
        ("thinker", "full"),
        ("talker", "at work"),
        ("idle", "idle"),
        ("nobody", "no worker"),
        ("held", "paused"),
    ]
    assert cells(lines, "qwen2_5_omni.thinker")[:3] == ["123,456", "0", "32/32"]


def test_versions_are_told_apart_and_one_that_drains_says_so() -> None:
    old, new = {"version": "1", "draining": True}, {"version": "2"}
    stages = [load("thinker", queued=1, **new), load("thinker", queued=2, running=1, slots=1, workers=1, **old)]
    loads = {"reason": "loading_model", "stage": "thinker", "pipeline_version": "2", "pipeline_digest": "d"}
    waiting = job(30, "queued", stage("thinker", "queued"), waiting={**loads, "message": "m"})
    lines = shown(120, {**STATUS, "stages": stages, "recent": [waiting]}, parts=[TopPart.OVERVIEW])
    [second] = [line for line in lines if line.startswith("qwen2_5_omni@2.thinker ")]
    [first] = [line for line in lines if line.startswith("qwen2_5_omni@1.thinker ")]
    assert second.rstrip().endswith("loads the model")
    assert first.rstrip().endswith("full, its version drains")


def test_a_narrow_terminal_has_the_main_columns_whole() -> None:
    lines = shown(40, parts=[TopPart.OVERVIEW, TopPart.WORKERS])
    assert max(map(len, lines)) <= 40
    assert cells(lines, "stage") == ["queued", "running", "state"]
    [thinker] = [line for line in lines if line.endswith("full")]
    assert thinker.split()[1:3] == ["123,456", "32/32"]
    assert cells(lines, "worker") == ["running", "renewed"]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_line_is_folded_and_no_number_is_cut(width: int) -> None:
    lines = shown(width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 1 + 2 + len(STATUS["stages"]) + 2 + 2 + 2 + 29  # type: ignore[arg-type]
    assert cells(lines, "late@h")[0] == "31/32"
    running = cells(lines, f"job-{1:032x}")
    assert running[-7:] == ["talker", "25", "%", "1", "min", "15", "s"]
    assert f"job-{2:032x}" in "\n".join(lines)
    assert ("took" in "\n".join(lines)) is (width >= 100)


def test_a_long_name_is_cut_on_a_narrow_terminal_alone() -> None:
    assert SLOT in "\n".join(shown(200))
    [line] = [line for line in shown(80) if line.startswith("qwen2_5_omni.thinker-1@")]
    assert "…" in line
    assert line.endswith("0.6 s ago")


@pytest.mark.parametrize("lines", [24, 30, 40])
def test_a_low_terminal_shows_a_part_of_each_and_says_how_many_more(lines: int) -> None:
    found = shown(80, lines=lines)
    assert len(found) <= lines
    [last] = [line for line in found[-1:] if line.startswith("… and ")]
    jobs = sum(line.startswith("job-") for line in found)
    assert last == f"… and {29 - jobs} more"
    assert jobs >= 3


def test_what_is_old_is_marked() -> None:
    assert "OLD: no answer" in shown(80, stale="no answer")[0]


def test_who_may_not_see_workers_is_told_so() -> None:
    found = shown(80, {**STATUS, "workers": []}, parts=[TopPart.WORKERS])
    assert found[-1] == "shown to a key with the scope admin"
    none = [load("first")]
    assert shown(80, {**STATUS, "workers": [], "stages": none}, parts=[TopPart.WORKERS])[-1] == "none"


def test_a_part_without_rows_says_so() -> None:
    assert shown(80, {**STATUS, "recent": []}, parts=[TopPart.JOBS])[-1] == "none"


def test_no_name_leaves_its_row_or_widens_it() -> None:
    hostile = [worker("a\nb\t\r\nc", 0.6, 9.4), worker("\x1b[2J\u202e" * 40, 0.6, 9.4)]
    found = shown(80, {**STATUS, "workers": hostile}, parts=[TopPart.WORKERS])
    assert len(found) == 5
    assert found[-2].startswith("a b c ")
    assert found[-1].startswith("�[2J�")
    assert max(map(len, found)) <= 80
