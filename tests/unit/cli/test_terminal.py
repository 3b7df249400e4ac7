"""omni_jobs.cli.terminal: what a terminal gets, and what a pipe gets."""

import ast
import json
import os
import pty
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.table import Table
from rich.text import Text

from omni_jobs.cli import app
from omni_jobs.cli.exits import fail
from omni_jobs.cli.screen import show, show_outcome
from omni_jobs.cli.tables import events_table, job_progress, job_summary, jobs_table, table_of
from omni_jobs.cli.terminal import console, printable, printable_json, say
from omni_jobs.views import EventView, JobView, PipelineView

# A title, the clipboard, a cleared screen, colours in C1, a link, bell, backspace, delete, a turned-around order.
EVIL = "\x1b]0;pwned\x07 \x1b]52;c;cHduZWQ=\x07 \x1b[2J \x9b31m \x1b]8;;http://evil\x1b\\ \x07\x08\x7f\r \u202e"
UNSAFE = set("\x07\x08\x7f\x9b\u202e\u2066\u2028\ufeff")
FINE = "Grüß Gott,\u00a0你好，\u3000नमस्ते क्\u200dष, می\u200cخواهم, 👩\u200d🚀\n\ttab"


class Terminal:
    """A pseudo-terminal in the place of stdout and stderr, from its beginning on: pytest has its own until then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def begin(self) -> None:
        monkeypatch = self._patch
        self._reading, writing = pty.openpty()
        self._file = os.fdopen(writing, "w", encoding="utf-8", newline="")
        monkeypatch.setattr("sys.stdout", self._file)
        monkeypatch.setattr("sys.stderr", self._file)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "120")
        self._got = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while piece := os.read(self._reading, 65_536):
                self._got += piece
        except OSError:  # Linux's way to say that nobody writes any more
            pass

    def got(self) -> str:
        self._file.close()
        self._reader.join()
        os.close(self._reading)
        return self._got.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    with monkeypatch.context() as patch:
        yield Terminal(patch)


def evil_job(status: str = "failed") -> JobView:
    moment = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    error = {"code": EVIL, "message": EVIL, "attempt": 1, "at": moment, "worker": EVIL, "retryable": True}
    stage: dict[str, Any] = {"name": EVIL, "status": "failed", "attempt": 2, "reason": EVIL, "payload_bytes": 1}
    stage |= {"progress": None, "worker": EVIL, "errors": [error]}
    stage |= {"queued_at": moment, "started_at": moment, "finished_at": moment}
    artifact = {"name": EVIL, "url": EVIL, "media_type": EVIL, "bytes": 1, "digest": EVIL}
    found: dict[str, Any] = {"id": EVIL, "pipeline": EVIL, "pipeline_version": "1", "modalities": ["text"]}
    found |= {"created_at": moment, "started_at": moment, "finished_at": moment, "stages": [stage], "status": status}
    found |= {"result": {"text": EVIL}, "artifacts": [artifact], "error": error, "metadata": {EVIL: EVIL}, "seed": 0}
    found |= {"warnings": [{"code": EVIL, "message": EVIL, "stage": EVIL}]}
    found |= {"waiting": {"reason": "turn", "stage": EVIL, "message": EVIL}}
    found["waiting"] |= {"pipeline_version": EVIL, "pipeline_digest": EVIL}
    return JobView.model_validate(found)


def _fails() -> None:
    with pytest.raises(typer.Exit):
        fail(EVIL, 1)


def _outcome(as_json: bool, out: Path | None) -> None:
    with pytest.raises(typer.Exit):
        show_outcome(evil_job(), as_json, out)


def _event() -> EventView:
    data = {"error": {"code": EVIL, "message": EVIL}}
    return EventView.model_validate({"id": 1, "at": "2026-01-01T00:00:00Z", "type": "job_failed", "data": data})


PRINTERS: dict[str, Callable[[], None]] = {
    "say": lambda: say(EVIL),
    "say on stderr": lambda: say(EVIL, err=True),
    "fail": _fails,
    "outcome": lambda: _outcome(False, None),
    "outcome with files": lambda: _outcome(False, Path(EVIL.replace("\0", ""))),
    "outcome as json": lambda: _outcome(True, None),
    "show a text": lambda: show(evil_job(), False, lambda job: job.id),
    "status": lambda: show(evil_job(), False, job_summary),
    "progress": lambda: show(evil_job("in_progress"), False, job_progress),
    "list": lambda: show([evil_job()], False, jobs_table),
    "events": lambda: show([_event()], False, events_table),
    "a table": lambda: show([{}], False, lambda _: table_of(EVIL, rows=[[EVIL, Text(EVIL)]])),
    "a title": lambda: console().print(Table(EVIL, title=EVIL, caption=EVIL)),
}


@pytest.mark.parametrize("printer", PRINTERS.values(), ids=PRINTERS)
def test_no_printer_lets_a_terminal_be_steered(terminal: Terminal, printer: Callable[[], None]) -> None:
    terminal.begin()
    printer()
    got = terminal.got()
    assert "pwned" in got
    left = {rest[:1] for rest in got.split("\x1b")[1:]}
    assert left <= {"["}, got  # rich's own colours
    assert not [rest for rest in got.split("\x1b[")[1:] if not rest.lstrip("0123456789;").startswith("m")]
    assert not UNSAFE & set(got), got


def test_no_wrong_usage_lets_a_terminal_be_steered(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may name what a server serves: pipelines, stages, modalities."""
    names = [PipelineView.model_construct(name=name, label=name) for name in (EVIL, "two")]
    monkeypatch.setattr("omni_jobs.client.Client.pipelines", lambda _: names)
    terminal.begin()
    with pytest.raises(SystemExit):
        app(["submit", "Hello", "--url", "http://127.0.0.1:9"])
    got = terminal.got()
    assert "pwned" in got
    assert not [rest for rest in got.split("\x1b")[1:] if not re.match(r"\[[0-9;]*m", rest)], got
    assert not UNSAFE & set(got), got


def test_what_can_only_be_seen_stays(terminal: Terminal) -> None:
    terminal.begin()
    say(FINE)
    assert terminal.got().replace("\r\n", "\n") == f"{FINE}\n"


def test_a_pipe_gets_the_text_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    say(EVIL)
    show([{"text": EVIL}], True, lambda _: "")
    out = capfd.readouterr().out
    assert out.startswith(f"{EVIL}\n")
    assert json.loads(out.partition("\n")[2]) == [{"text": EVIL}]


def test_text_is_no_markup(capfd: pytest.CaptureFixture[str]) -> None:
    console().print(table_of("[red]name[/red]", rows=[["[link=http://evil]:bomb:[/link]"]]))
    assert capfd.readouterr().out.split() == ["[red]name[/red]", "[link=http://evil]:bomb:[/link]"]


def test_a_terminal_gets_the_same_json() -> None:
    text = json.dumps(EVIL + FINE + "\U000e0041", ensure_ascii=False)
    assert json.loads(printable_json(text)) == json.loads(text)
    assert not UNSAFE & set(printable_json(text))


def test_lines_of_windows_keep_their_ends() -> None:
    assert printable("one\r\ntwo\rthree") == "one\ntwo�three"


def test_the_commands_print_through_no_other_door() -> None:
    others = []
    for path in (Path(__file__).parents[3] / "omni_jobs" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            used = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if path.name != "terminal.py" and used in ("print", "typer.echo", "Console", "sys.stdout.write"):
                others.append(f"{path.name}:{node.lineno}")  # type: ignore[attr-defined]
    assert others == []
