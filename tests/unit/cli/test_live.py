"""omni_jobs.cli.live: what of a job's changes is told on a pipe, and on a terminal."""

import os
import pty
import sys
from typing import Any

import pytest

from omni_jobs.cli.live import JsonLines, ProgressLines, shown_changes
from omni_jobs.views import JobView

STAGE = {"attempt": 1, "reason": None, "progress": None, "payload_bytes": None, "worker": None, "errors": []}
STAGE |= {"queued_at": None, "started_at": None, "finished_at": None}


def job(status: str, first: str, **waiting: Any) -> JobView:
    stages = [{**STAGE, "name": "first", "status": first}, {**STAGE, "name": "second", "status": "pending"}]
    found: dict[str, Any] = {"id": "job-1", "pipeline": "p", "pipeline_version": "1", "modalities": ["text"]}
    found |= {"created_at": "2026-01-01T00:00:00Z", "started_at": None, "finished_at": None, "stages": stages}
    found |= {"result": None, "artifacts": [], "error": None, "metadata": {}, "seed": 0, "status": status}
    if waiting:
        about = {"stage": "first", "pipeline_version": "1", "pipeline_digest": "d", "message": "2 stand before it"}
        found["waiting"] = {**about, "reason": "turn", **waiting}
    return JobView.model_validate(found)


def estimate(high_s: float) -> dict[str, Any]:
    return {"estimate": {"low_s": 0.0, "high_s": high_s, "basis": "lately"}}


def test_each_state_and_each_reason_is_told_once() -> None:
    lines = ProgressLines()
    assert lines.new_in(job("queued", "queued", **estimate(0.5))) == ["first queued"]
    (reason,) = lines.new_in(job("queued", "queued", **estimate(30)))
    assert reason.startswith("turn: 2 stand before it")
    assert lines.new_in(job("queued", "queued", **estimate(20))) == []
    assert lines.new_in(job("in_progress", "running")) == ["first running"]


def test_json_tells_all_but_a_new_estimate() -> None:
    lines = JsonLines()
    first = job("queued", "queued", position=2, **estimate(30))
    assert lines.new_in(first) == [first.model_dump_json()]
    assert lines.new_in(job("queued", "queued", position=2, **estimate(20))) == []
    nearer = job("queued", "queued", position=1, **estimate(20))
    assert lines.new_in(nearer) == [nearer.model_dump_json()]
    assert len(lines.new_in(job("in_progress", "running"))) == 1


def test_a_terminal_shows_the_jobs_as_they_are_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, os.fdopen(ours, "rb", buffering=0) as read:
        monkeypatch.setattr(sys, "stdout", terminal)
        with shown_changes(["job-1", "job-2"], as_json=False) as changed:
            changed(job("in_progress", "running"))
            changed(job("completed", "succeeded"))
        terminal.flush()
        monkeypatch.undo()
        seen = b""
        while "✔".encode() not in seen:  # a terminal gives what it has so far
            seen += read.read(1 << 16)
    shown = seen.decode()
    assert "job-2" in shown
    assert "completed" in shown
