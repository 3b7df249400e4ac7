"""Many jobs in one request: an answer to each line, for all kinds of lines and of chunks."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from omni_jobs.api.bulk_lines import groups_of_lines
from omni_jobs.cli import Exit, app
from omni_jobs.client import Client
from omni_jobs.http.held_bodies import Body, HeldBytes
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve

JSONL = {"Content-Type": "application/jsonl"}
LIMIT = 4096


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"max_body_bytes": LIMIT, "max_queued_jobs": 1000})


def line(text: str, **more: Any) -> bytes:
    body = {"model": "echo", "messages": [{"role": "user", "content": text}], **more}
    return json.dumps(body, ensure_ascii=False).encode()


def answers(api: ApiServer, content: Any, **headers: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    response = api.http.post("/v1/jobs/bulk", content=content, headers=JSONL | headers)
    assert response.status_code == 200, response.text
    *lines, counts = [json.loads(answer) for answer in response.text.splitlines()]
    return lines, counts


def jobs_there(api: ApiServer) -> int:
    return sum(api.services.jobs.backlog().values())


def test_a_job_a_line_in_their_order(api: ApiServer) -> None:
    lines, counts = answers(api, b"\n".join(line(f"行 {n}", seed=n) for n in range(600)))
    assert counts == {"lines": 600, "accepted": 600, "refused": 0}
    assert [answer["line"] for answer in lines] == list(range(1, 601))
    assert len({answer["id"] for answer in lines}) == jobs_there(api) == 600
    assert api.http.get(f"/v1/jobs/{lines[41]['id']}").json()["seed"] == 41


def test_a_line_that_is_refused_disturbs_no_other(api: ApiServer) -> None:
    content = b"\r\n".join(
        [
            line("a"),
            b"",
            b"{",
            line("b", temperature=9),
            b"   ",
            line("x" * LIMIT),
            b"\xff",
            line("model", model="?"),
            line("z"),
        ]
    )
    lines, counts = answers(api, content)
    assert counts == {"lines": 7, "accepted": 2, "refused": 5}
    assert [answer["line"] for answer in lines] == [1, 3, 4, 6, 7, 8, 9]
    errors = {
        answer["line"]: (answer["error"]["code"], answer["error"]["field"]) for answer in lines if "error" in answer
    }
    assert errors == {
        3: ("invalid_request", "body"),
        4: ("invalid_request", "temperature"),
        6: ("request_too_large", "body"),
        7: ("invalid_request", "body"),
        8: ("not_found", "model"),
    }
    assert jobs_there(api) == 2


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_chunks_fall_anywhere(api: ApiServer, size: int) -> None:
    content = line("é 中 🙂") + b"\n" + line("x" * 9000) + b"\n\n" + line("end")
    chunks = (content[start : start + size] for start in range(0, len(content), size))
    lines, counts = answers(api, chunks)
    assert counts == {"lines": 3, "accepted": 2, "refused": 1}
    assert [answer["line"] for answer in lines] == [1, 2, 4]
    assert lines[1]["error"]["code"] == "request_too_large"


def test_sent_again_with_its_key_it_makes_the_rest(api: ApiServer) -> None:
    first, _ = answers(api, b"\n".join(line(str(n)) for n in range(10)), **{"Idempotency-Key": "bulk"})
    again, counts = answers(api, b"\n".join(line(str(n)) for n in range(12)), **{"Idempotency-Key": "bulk"})
    assert [answer["id"] for answer in again[:10]] == [answer["id"] for answer in first]
    assert [answer["created"] for answer in again] == [False] * 10 + [True] * 2
    assert counts["accepted"] == jobs_there(api) == 12
    other, counts = answers(api, line("other") + b"\n" + line("1"), **{"Idempotency-Key": "bulk"})
    assert other[0]["error"]["code"] == "idempotency_key_reused"
    assert other[1]["id"] == first[1]["id"]


def test_each_line_that_does_not_fit_is_answered(api: ApiServer) -> None:
    lines, counts = answers(api, b"\n".join(line(str(n)) for n in range(1200)))
    refused = [answer["error"] for answer in lines if "error" in answer]
    assert {error["code"] for error in refused} == {"too_many_jobs"}
    assert all(error["retryable"] for error in refused)
    assert counts["accepted"] == jobs_there(api) <= 1000


@pytest.mark.parametrize(("content", "counts"), [(b"", 0), (b"\n\n\n", 0)])
def test_nothing_is_answered_with_nothing(api: ApiServer, content: bytes, counts: int) -> None:
    assert answers(api, content) == ([], {"lines": counts, "accepted": 0, "refused": 0})


@pytest.mark.parametrize(
    ("headers", "status", "field"),
    [
        ({"Content-Type": "application/json"}, 415, "Content-Type"),
        ({**JSONL, "Content-Encoding": "gzip"}, 415, "Content-Encoding"),
        ({**JSONL, "Idempotency-Key": "x" * 201}, 422, "Idempotency-Key"),
    ],
)
def test_a_wrong_request(api: ApiServer, headers: dict[str, str], status: int, field: str) -> None:
    response = api.http.post("/v1/jobs/bulk", content=line("x"), headers=headers)
    assert (response.status_code, response.json()["error"]["field"]) == (status, field)
    assert jobs_there(api) == 0


def test_the_client_and_the_command(api: ApiServer, tmp_path: Path) -> None:
    url = f"http://{api.host}:{api.port}"
    with Client(url) as client:
        results = list(client.submit_bulk([line("a"), b"{}\n"], idempotency_key="k"))
    assert [(answer.line, answer.id is None, answer.error is None) for answer in results] == [
        (1, False, True),
        (2, True, False),
    ]
    file, out = tmp_path / "jobs.jsonl", tmp_path / "answers.jsonl"
    file.write_bytes(line("a") + b"\n{}\n" + line("neu 新") + b"\n")
    command = ["submit-bulk", str(file), "--out", str(out), "--idempotency-key", "k", "--url", url]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "2 accepted, 1 refused" in result.output
    lines = [json.loads(answer) for answer in out.read_text(encoding="utf-8").splitlines()]
    assert [answer.get("id") == results[0].id for answer in lines] == [True, False, False]
    sent_again, _ = answers(api, file.read_bytes(), **{"Idempotency-Key": "k"})
    assert lines == [sent_again[0], sent_again[1], {**sent_again[2], "created": True}]
    assert lines[0]["created"] is False
    assert lines[1]["error"].keys() >= {"code", "message", "type", "param", "field", "retryable"}


def test_an_answer_that_holds_another_end_of_line(api: ApiServer) -> None:
    with Client(f"http://{api.host}:{api.port}") as client:
        refused, accepted = client.submit_bulk([line("a", **{"a\u2028b": 1}), line("a")])
    assert refused.error is not None
    assert refused.error.field == "a\u2028b"
    assert accepted.error is None


# Pipes: they cannot be sought, have no size, and give their lines once.


def command(api: ApiServer, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """``omni-jobs submit-bulk`` as a process, its three streams pipes."""
    words = [sys.executable, "-m", "omni_jobs.cli", "submit-bulk", *arguments]
    url = f"http://{api.host}:{api.port}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*words, "--url", url], bufsize=0, **(pipes | options))


def test_standard_input_may_be_a_pipe_and_is_sent_as_it_comes(api: ApiServer) -> None:
    """The first group is stored before the pipe ends."""
    with command(api, "-") as process:
        assert process.stdin is not None
        for n in range(300):
            process.stdin.write(line(f"行 {n}") + b"\n")
        deadline = time.monotonic() + 60
        while not jobs_there(api):
            assert time.monotonic() < deadline, "nothing came while the pipe was open"
            time.sleep(0.05)
        output, errors = process.communicate(line("the last") + b"\n{}\n", timeout=60)
    assert process.returncode == 1
    assert errors.decode() == "301 accepted, 1 refused\n"
    lines = [json.loads(answer) for answer in output.splitlines()]
    assert [answer["line"] for answer in lines] == list(range(1, 303))
    assert jobs_there(api) == 301


def test_a_fifo(api: ApiServer, tmp_path: Path) -> None:
    """A FIFO is named as an argument, as a shell's ``<(…)`` does."""
    fifo, out = tmp_path / "jobs", tmp_path / "answers.jsonl"
    os.mkfifo(fifo)
    with command(api, str(fifo), "--out", str(out)) as process:
        with open(fifo, "wb") as lines:  # opens once the command reads
            lines.writelines(line(str(n)) + b"\n" for n in range(1000))
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors.decode()) == (0, b"", "1000 accepted, 0 refused\n")
    assert len(out.read_text(encoding="utf-8").splitlines()) == 1000


def test_a_shell_s_process_substitution(api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_bytes(line("a") + b"\n" + line("b") + b"\n")
    words = f"{sys.executable} -m omni_jobs.cli submit-bulk <(cat jobs.jsonl) --url http://{api.host}:{api.port}"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "2 accepted, 0 refused\n")


def test_a_pipe_that_is_empty(api: ApiServer) -> None:
    with command(api, "-", stdin=subprocess.DEVNULL) as process:
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors.decode()) == (0, b"", "0 accepted, 0 refused\n")


def test_sent_again_after_a_break_with_the_key_that_the_error_names(
    valkey_server: str, tmp_path: Path, database_url: str, api: ApiServer
) -> None:
    """A pipe that pauses too long is refused; the same lines with the key that the error names make the rest."""
    impatient = api.services.settings.model_copy(update={"silence_limit_s": 1.0, "data_dir": tmp_path / "other"})
    with serve(impatient) as other, command(other, "-") as process:
        assert process.stdin is not None
        for n in range(300):
            process.stdin.write(line(str(n)) + b"\n")
        deadline = time.monotonic() + 60
        while process.returncode is None:
            # The server has ended the request by then; a client finds out as it sends on.
            assert time.monotonic() < deadline, "the command did not end"
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.5)
            with suppress(BrokenPipeError):
                process.stdin.write(line("late") + b"\n")
        assert process.stderr is not None
        errors = process.stderr.read().decode()
    assert process.returncode == Exit.FAILED
    assert "nothing of the body came for 1 s" in errors
    [key] = re.findall(r"send the same lines again with --idempotency-key (bulk-[0-9a-f]{32}): ", errors)
    before = jobs_there(api)
    assert 0 < before < 300
    with command(api, "-", "--idempotency-key", key) as process:
        output, _ = process.communicate(b"".join(line(str(n)) + b"\n" for n in range(300)), timeout=60)
    assert process.returncode == 0
    made = [json.loads(answer).get("created", False) for answer in output.splitlines()]
    assert (made.count(True), len(made), jobs_there(api)) == (300 - before, 300, 300)


def test_a_command_that_is_interrupted_names_its_key(api: ApiServer) -> None:
    lines = b"".join(line(str(n)) + b"\n" for n in range(300))
    with command(api, "-") as process:
        assert process.stdin is not None
        process.stdin.write(lines)
        deadline = time.monotonic() + 60
        while not jobs_there(api):
            assert time.monotonic() < deadline, "nothing came while the pipe was open"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED
    [key] = re.findall(r"send the same lines again with --idempotency-key (bulk-[0-9a-f]{32}): ", errors.decode())
    with command(api, "-", "--idempotency-key", key) as process:
        process.communicate(lines, timeout=60)
    assert (process.returncode, jobs_there(api)) == (0, 300)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.jsonl"], "'nothing.jsonl': No such file or directory"),
        (["."], "'.' has no file"),
        (["-", "--pipeline", "echo"], "only a directory takes it"),
        (["-", "--out", "no/such/place"], "'no/such/place': No such file or directory"),
    ],
)
def test_what_cannot_be_opened_is_wrong_usage(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["submit-bulk", *arguments], input=b"", env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert says in result.output


def test_no_server_names_the_key(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["submit-bulk", "-", "--url", "http://127.0.0.1:9"], input=line("a"))
    assert result.exit_code == Exit.UNREACHABLE
    assert "no answer from http://127.0.0.1:9/v1/jobs/bulk" in result.stderr
    assert "send the same lines again with --idempotency-key bulk-" in result.stderr


async def test_nothing_but_line_ends_lets_others_in_between() -> None:
    """Other requests get their turns at the event loop while a million line ends in one chunk are read."""
    turns = 0

    async def chunks() -> AsyncIterator[bytes]:
        yield b"\n" * (1 << 20)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    body = Body(HeldBytes(1 << 30), Settings(), asyncio.Event().wait, None)  # type: ignore[arg-type]
    assert [group async for group in groups_of_lines(chunks(), LIMIT, body)] == []
    task.cancel()
    assert turns > 100
