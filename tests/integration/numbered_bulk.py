"""A bulk whose lines are numbered, so that each job can be told, and the checks of its answers.

Whatever broke a bulk off, the answers that its client got are true, and sent again with its key it makes exactly the
jobs that are missing.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx2
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer

N = 3000
AT_ONCE = 1000  # lines that the client has sent before the fault
GROUP = 256  # lines that the server submits together
KEY = "night-run"
PATIENCE_S = 60.0
HEAD = (
    f"POST /v1/jobs/bulk HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/jsonl\r\nIdempotency-Key: {KEY}\r\n"
)
ROWS = text("SELECT seed, id, idempotency_key FROM jobs")

Answer = dict[str, Any]


def line(number: int) -> bytes:
    """The line of this number: its job's seed is the number, so that the job can be told."""
    body = {"model": "echo", "messages": [{"role": "user", "content": f"行 {number}"}], "seed": number}
    return json.dumps(body, ensure_ascii=False).encode() + b"\n"


LINES = [line(number) for number in range(1, N + 1)]
BULK = b"".join(LINES)


def jobs_by_line(database: Database) -> dict[int, str]:
    """Return the ids of all jobs by the numbers of their lines, none of which has two."""
    rows = database.read(lambda tx: tx.execute(ROWS).all())
    assert len({row.seed for row in rows}) == len(rows), "a line has two jobs"
    assert all(row.idempotency_key.endswith(f" {row.seed}") for row in rows)
    return {row.seed: row.id for row in rows}


def parsed(body: bytes) -> tuple[list[Answer], Answer | None]:
    """Return the answers to lines that have come whole, and the last answer if that has come."""
    answers = [json.loads(each) for each in body.split(b"\n")[:-1]]
    last = answers.pop() if answers and "lines" in answers[-1] else None
    return answers, last


def check_truth(answers: Sequence[Answer], jobs: Mapping[int, str]) -> None:
    """The answers are those of the first lines, in order, and each names its line's own job."""
    assert [answer["line"] for answer in answers] == list(range(1, len(answers) + 1))
    for answer in answers:
        if "id" in answer:
            assert jobs[answer["line"]] == answer["id"]


def send(url: str, content: Any, **headers: str) -> httpx2.Response:
    headers = {"Content-Type": "application/jsonl", "Idempotency-Key": KEY, **headers}
    options: Any = {"trust_env": False, "verify": False, "timeout": PATIENCE_S}
    return httpx2.post(f"{url}/v1/jobs/bulk", content=content, headers=headers, **options)


def check_the_rest_is_made(url: str, database: Database, before: Mapping[int, str] | None, **headers: str) -> None:
    """Send the bulk again: every line is answered with its own job, and those that are missing are made.

    ``before``: the jobs that are there; None while the server may still make some of them.
    """
    answer = send(url, BULK, **headers)
    assert answer.status_code == 200, answer.text
    answers, last = parsed(answer.content)
    jobs = jobs_by_line(database)
    check_truth(answers, jobs)
    assert sorted(jobs) == list(range(1, N + 1))
    if before is not None:
        assert [answer["created"] for answer in answers] == [number not in before for number in range(1, N + 1)]
        assert before.items() <= jobs.items()
    assert last == {"lines": N, "accepted": N, "refused": 0}


def until(holds: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def broken_by(database: Database, fault: Callable[[], object]) -> Iterator[bytes]:
    """The lines of a bulk. The fault comes once the first jobs are made and most lines are not sent yet."""
    yield b"".join(LINES[:AT_ONCE])
    until(lambda: jobs_by_line(database))
    fault()
    for start in range(AT_ONCE, N, 100):
        yield b"".join(LINES[start : start + 100])


def on(settings: Settings, url: str, **more: Any) -> Settings:
    return Settings(**{**settings.model_dump(exclude_unset=True), "database_url": url, **more})


def url_of(api: ApiServer) -> str:
    return f"http://{api.host}:{api.port}"


def read_some(connection: socket.socket) -> bytes:
    """Send the whole bulk, and read the first bytes of its answers."""
    connection.sendall(f"{HEAD}Connection: close\r\nContent-Length: {len(BULK)}\r\n\r\n".encode() + BULK)
    received = b""
    while len(received) < 2000:
        piece = connection.recv(4096)
        assert piece, received
        received += piece
    return received


def slow_reader(url: str) -> socket.socket:
    """A connection whose answers stay in the server's process until they are read.

    Small segments keep the kernel's buffer on the server's side small: else it takes some 2 MB, all answers of a bulk.
    """
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    connection.settimeout(PATIENCE_S)
    connection.connect((host, int(port)))
    return connection


def without_chunks(body: bytes) -> bytes:
    """Return what has come of a chunked body."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found += body[: int(size or b"0", 16)]
        body = body[int(size or b"0", 16) + 2 :]
    return found
