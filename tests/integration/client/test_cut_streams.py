"""A stream of events whose connections are all cut at once, as by a proxy. A server of a few lines plays both."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from threading import Thread
from typing import Any, cast

import pytest

from omni_jobs.client import repeats
from omni_jobs.errors import ServerUnavailable
from tests.both_clients import KINDS, Kind, of_kind

JOB_ID = f"job-{'1' * 32}"
JOB = ("job", {"id": JOB_ID, "status": "in_progress"})
STAGE = ("stage", {"stage": "second", "attempt": 1, "status": "running"})
KEPT = ("job.started", {"type": "job.started"}, 1)
END = ("job.completed", {"type": "job.completed"}, 2)
CONNECTIONS = 12  # in the last one the job completes
Told = tuple[Any, ...]


@pytest.fixture(params=KINDS)
def which(request: pytest.FixtureRequest) -> Kind:
    return cast(Kind, request.param)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "WAIT_PAUSES_S", (0.0, 0.0, 0.0, 0.0))


def progress(done: int) -> Told:
    return ("progress", {"stage": "second", "attempt": 1, "done": done, "total": None, "unit": "steps"})


def written(events: list[Told]) -> bytes:
    lines = b""
    for name, data, *number in events:
        lines += b"".join(b"id: %d\n" % each for each in number)
        lines += f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
    return lines


@contextmanager
def server(events_of: Callable[[int], bytes]) -> Iterator[tuple[str, list[str]]]:
    """A server that sends each connection some events, and closes it; its URL, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(events_of(len(asked)))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}", asked
        serving.shutdown()
        thread.join()


def test_a_stream_whose_connections_tell_nothing_new_is_given_up(which: Kind) -> None:
    """Each tells the job, and how far it is, as the one before did."""

    def events(connection: int) -> bytes:
        kept = {1: [KEPT], CONNECTIONS: [END]}.get(connection, [])
        return written([JOB, STAGE, progress(1), *kept])

    with server(events) as (url, asked), of_kind(which, url) as client:
        stream = client.stream(JOB_ID)
        told = [event.name for event in islice(stream, 4)]
        with pytest.raises(ServerUnavailable):
            next(stream)
    assert told == ["job", "stage", "progress", "job.started"]
    assert len(asked) == 5
    assert all("starting_after=1" in path for path in asked[1:])


@pytest.mark.parametrize("new", ["progress", "ping"])
def test_a_stream_whose_connections_tell_something_new_goes_on_to_the_end(which: Kind, new: str) -> None:
    """A ping is new, too: the connection has lasted for as long as the server waits between two."""

    def events(connection: int) -> bytes:
        told = [JOB, STAGE, progress(connection if new == "progress" else 1)]
        ping = b": ping - now\n\n" if new == "ping" else b""
        return written(told) + ping + (written([END]) if connection == CONNECTIONS else b"")

    with server(events) as (url, asked), of_kind(which, url) as client:
        told = [event.name for event in client.stream(JOB_ID)]
    steps = CONNECTIONS if new == "progress" else 1
    assert told == ["job", "stage", *["progress"] * steps, "job.completed"]
    assert len(asked) == CONNECTIONS
