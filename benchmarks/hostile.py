"""Hostile clients, and how a well-behaved one fares beside them.

    python -m benchmarks.hostile --json FILE [--seconds 60] [--clients 8] [--quick]

One API process, SQLite, no worker. Hostile clients send the worst requests that are known (tests/hostile.py), each
all of them in turn, for the given time; a well-behaved one asks /healthz and submits small jobs all the while, as it
did before on the idle server. Then the server is left alone for a minute. The clients run on the same cores.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from benchmarks.figures import Figure, figure, report
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests import hostile

SMALL = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}).encode()
JSON = "application/json"
LARGE_TEXT_BYTES = (8 << 20) - 1000
PATIENCE_S = 30.0  # of a hostile client
HEALTH_EVERY_S, SUBMIT_EVERY_S = 0.02, 0.05
MIB = 1 << 20

Attack = Callable[[str, int], str]
"""One hostile request to a host and port; returns how it went."""


def main() -> None:
    arguments = _arguments()
    if arguments.quick:
        arguments.seconds, arguments.idle, arguments.rest, arguments.large_jobs = 5.0, 2.0, 0.5, 2
        hostile.BODY_BYTES = MIB
    with tempfile.TemporaryDirectory(prefix="omni-jobs-hostile-") as name:
        directory = Path(name)
        requests = _write_requests(directory / "requests")
        # Imported here, because the process of the hostile clients imports this module and needs no torch.
        from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint

        model = build_tiny_checkpoint(directory / "checkpoint")
        settings = Settings(data_dir=directory / "data", models={"qwen2_5_omni": model})
        with EmbeddedStack(settings, pipelines=[]) as stack:
            found = _measure(stack, requests, arguments)
    report(found, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the attack (default 60)")
    parser.add_argument("--clients", type=int, default=8, help="hostile ones (default 8)")
    parser.add_argument("--idle", type=float, default=15.0, help="seconds measured before (default 15)")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds left alone afterwards (default 60)")
    parser.add_argument("--large-jobs", type=int, default=60, help="with 8 MiB of text each (default 60)")
    parser.add_argument("--only", action="append", help="only attacks whose name holds this; may be repeated")
    parser.add_argument("--quick", action="store_true", help="small and short: whether it works")
    return parser.parse_args()


def _measure(stack: EmbeddedStack, requests: Mapping[str, Path], arguments: argparse.Namespace) -> list[Figure]:
    where = urlsplit(stack.url)
    host, port = where.hostname or "", where.port or 0
    api = next(child.pid or 0 for child in stack.children() if child.name == "api")
    _well_behaved(host, port, 1.0)  # warm
    memory = Memory(api)
    with memory.sampled():
        at_start = memory.now()
        _store_large_jobs(host, port, arguments.large_jobs)
        idle = _well_behaved(host, port, arguments.idle)
        before = memory.now()
        with _attacked(host, port, requests, arguments) as told:
            attacked = _well_behaved(host, port, arguments.seconds)
        time.sleep(arguments.rest)
        after = memory.now()
    _show(told, attacked)
    return list(_figures(idle, attacked, memory, at_start, before, after, told))


def _figures(
    idle: Behaved, attacked: Behaved, memory: Memory, at_start: float, before: float, after: float, told: Sequence[Told]
) -> Iterator[Figure]:
    for name, mine, theirs in (
        ("/healthz", idle.health_s, attacked.health_s),
        ("a small submit", idle.submit_s, attacked.submit_s),
    ):
        for percent in (50, 99):
            yield figure(f"idle: {name}, p{percent}", "ms", [_percentile(mine, percent) * 1000])
            limit = 100.0 if (name, percent) == ("/healthz", 99) else None
            yield figure(f"attacked: {name}, p{percent}", "ms", [_percentile(theirs, percent) * 1000], at_most=limit)
        ratio = _percentile(theirs, 99) / _percentile(mine, 99)
        limit = 10.0 if name == "a small submit" else None
        yield figure(f"{name}, p99, attacked / idle", "×", [ratio], at_most=limit)
        yield figure(f"attacked: {name}, longest", "ms", [max(theirs) * 1000])
    answered = attacked.answered / (attacked.answered + attacked.failed)
    yield figure("well-behaved requests that were served", "of 1", [answered], at_least=1.0)
    yield figure("hostile requests", "requests", [float(len(told))])
    yield figure("the API's memory at its start", "MiB", [at_start])
    yield figure("the API's memory before the attack, above its start", "MiB", [_some(before - at_start)])
    yield figure("the API's memory, peak above its start", "MiB", [_some(memory.peak - at_start)], at_most=512)
    yield figure("the API's memory left alone, above its start", "MiB", [_some(after - at_start)], at_most=100)
    yield figure("its decoders' memory, peak", "MiB", [_some(memory.peak_of_children)])


def _some(value: float) -> float:
    return max(value, 0.001)


def _percentile(seconds: Sequence[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


def _show(told: Sequence[Told], attacked: Behaved) -> None:
    console = Console(stderr=True)
    by_name: dict[str, list[Told]] = {}
    for one in told:
        by_name.setdefault(one.name, []).append(one)
    for name, of_name in sorted(by_name.items()):
        ways = ", ".join(f"{count} × {how}" for how, count in Counter(one.how for one in of_name).most_common(4))
        console.print(f"{name}: longest {max(one.seconds for one in of_name):.1f} s: {ways}", markup=False)
    for why, count in attacked.failures.most_common():
        console.print(f"well-behaved, failed: {count} × {why}", markup=False)
    console.print(f"the longest /healthz began after {attacked.worst_at_s:.1f} s", markup=False)


# The well-behaved client


@dataclass
class Behaved:
    """Seconds of each answer; what was not served."""

    health_s: list[float] = field(default_factory=list)
    submit_s: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    worst_at_s: float = 0.0

    @property
    def answered(self) -> int:
        return len(self.health_s) + len(self.submit_s)

    @property
    def failed(self) -> int:
        return self.failures.total()


def _well_behaved(host: str, port: int, seconds: float) -> Behaved:
    found = Behaved()
    began = time.monotonic()

    def ask(method: str, path: str, body: bytes | None, status: int, to: list[float], every_s: float) -> None:
        connection: http.client.HTTPConnection | None = None
        while time.monotonic() < began + seconds:
            start = time.perf_counter()
            at = time.monotonic() - began
            try:
                if connection is None:
                    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
                connection.request(method, path, body, {"Content-Type": JSON} if body else {})
                answer = connection.getresponse()
                content = answer.read()
                if answer.status == status:
                    took = time.perf_counter() - start
                    if path == "/healthz" and took > max(to, default=0.0):
                        found.worst_at_s = at
                    to.append(took)
                else:
                    found.failures[f"{path}: {answer.status} {content[:120]!r}"] += 1
            except (OSError, http.client.HTTPException) as error:
                found.failures[f"{path}: {type(error).__name__}"] += 1
                if connection is not None:
                    connection.close()
                connection = None
            time.sleep(every_s)
        if connection is not None:
            connection.close()

    threads = [
        threading.Thread(target=ask, args=("GET", "/healthz", None, 200, found.health_s, HEALTH_EVERY_S)),
        threading.Thread(target=ask, args=("POST", "/v1/jobs", SMALL, 202, found.submit_s, SUBMIT_EVERY_S)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _store_large_jobs(host: str, port: int, number: int) -> None:
    """What reading lists may cost: jobs with as much text as is taken."""
    body = json.dumps(
        {"model": "echo", "messages": [{"role": "user", "content": "x" * LARGE_TEXT_BYTES}]}, ensure_ascii=False
    ).encode()
    with closing(http.client.HTTPConnection(host, port, timeout=PATIENCE_S)) as connection:
        for _ in range(number):
            connection.request("POST", "/v1/jobs", body, {"Content-Type": JSON})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 202:
                raise SystemExit(f"a job of 8 MiB was not taken: {content[:200]!r}")


# The hostile ones


@dataclass(frozen=True, slots=True)
class Told:
    """One hostile request: how it went, and how long it took."""

    name: str
    how: str
    seconds: float


@contextmanager
def _attacked(
    host: str, port: int, requests: Mapping[str, Path], arguments: argparse.Namespace
) -> Iterator[list[Told]]:
    """Hostile clients, a process for all of them, until the context ends."""
    told: list[Told] = []
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    stop = context.Event()
    target = partial(_attackers, host, port, dict(requests), arguments.clients, arguments.only or [])
    process = context.Process(target=target, args=(stop, sender))
    process.start()
    sender.close()
    try:
        receiver.recv()  # they have begun
        yield told
        stop.set()
        told += receiver.recv()
    finally:
        stop.set()
        process.join(PATIENCE_S)
        if process.is_alive():
            process.kill()
            process.join()


def _attackers(
    host: str, port: int, requests: Mapping[str, Path], clients: int, only: Sequence[str], stop: object, sender: object
) -> None:
    attacks = {name: attack for name, attack in _attacks(requests).items() if not only or any(o in name for o in only)}
    names = sorted(attacks)
    told: list[Told] = []

    def client(number: int) -> None:
        turn = number * len(names) // clients
        while not stop.is_set():  # type: ignore[attr-defined]
            name = names[turn % len(names)]
            turn += 1
            began = time.monotonic()
            try:
                how = attacks[name](host, port)
            except OSError as error:
                how = type(error).__name__
            told.append(Told(name, how, time.monotonic() - began))

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    sender.send(len(attacks))  # type: ignore[attr-defined]
    stop.wait()  # type: ignore[attr-defined]
    sender.send(list(told))  # type: ignore[attr-defined]
    os._exit(0)  # whoever still waits for an answer is cut off


def _attacks(requests: Mapping[str, Path]) -> dict[str, Attack]:
    found: dict[str, Attack] = {}
    for name, path in requests.items():
        kind = name.partition(": ")[0]
        if kind == "head":
            found[name] = partial(_send_raw, path)
        elif kind == "bulk":
            found[name] = partial(_post, "/v1/jobs/bulk", "application/jsonl", path)
        else:
            found[name] = partial(_post, "/v1/jobs", JSON, path)
    return found | {
        "lists: 100 jobs": partial(_get, "/v1/jobs?limit=100"),
        "lists: the status": partial(_get, "/v1/status"),
        "connections: silent": _silent,
        "connections: sent ahead": _sent_ahead,
        "connections: dribbling heads": _dribble,
        "connections: a body held back": _held_back,
        "connections: long polls": _long_polls,
        "connections: an answer nobody reads": _unread,
    }


def _write_requests(directory: Path) -> dict[str, Path]:
    """The requests as files, so that sending them costs this machine little."""
    directory.mkdir()
    found = {}
    bodies: dict[str, Callable[[], bytes]] = {f"body: {name}": make for name, make in hostile.BODIES.items()}
    bodies |= {f"media: {name}": make for name, make in hostile.MEDIA.items()}
    bodies |= {f"bulk: {name}": make for name, make in hostile.BULKS.items()}
    bodies |= {f"head: {name}": partial(make, hostile.BODY_BYTES) for name, make in hostile.HEADS.items()}
    for number, (name, make) in enumerate(bodies.items()):
        found[name] = directory / str(number)
        found[name].write_bytes(make())
    return found


def _connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=PATIENCE_S)


def _answer(connection: socket.socket) -> str:
    """The status of the answer; all of it is read."""
    begin = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(MIB):
            begin = begin or piece[:16]
    return begin[9:12].decode("ascii", "replace") or "closed"


def _send_raw(path: Path, host: str, port: int) -> str:
    with _connect(host, port) as connection, open(path, "rb") as file:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendfile(file)
        return _answer(connection)


def _post(to: str, content_type: str, path: Path, host: str, port: int) -> str:
    head = f"POST {to} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nConnection: close\r\n"
    with _connect(host, port) as connection, open(path, "rb") as file:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(f"{head}Content-Length: {path.stat().st_size}\r\n\r\n".encode())
            connection.sendfile(file)
        return _answer(connection)


def _get(path: str, host: str, port: int) -> str:
    with _connect(host, port) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return _answer(connection)


def _silent(host: str, port: int) -> str:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(_connect(host, port))
        time.sleep(3.0)
    return "held"


def _dribble(host: str, port: int) -> str:
    with ExitStack() as stack:
        connections = [stack.enter_context(_connect(host, port)) for _ in range(50)]
        for byte in b"GET / HTTP/1.1\r\nX: " + b"y" * 10:
            for connection in connections:
                with suppress(OSError):
                    connection.send(bytes([byte]))
            time.sleep(0.1)
    return "held"


def _held_back(host: str, port: int) -> str:
    body = b'{"model": "echo", "messages": [{"role": "user", "content": "' + b"x" * hostile.BODY_BYTES
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: {len(body) + 10}\r\n\r\n"
    )
    with _connect(host, port) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(head.encode() + body)
            time.sleep(3.0)
            return "held"
        return _answer(connection)


def _sent_ahead(host: str, port: int) -> str:
    with _connect(host, port) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)
        return _answer(connection)


def _long_polls(host: str, port: int) -> str:
    poll = b"GET /v1/jobs/job-%032x?wait=3 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        for number in range(100):
            stack.enter_context(_connect(host, port)).sendall(poll % number)
        time.sleep(2.0)
    return "held"


def _unread(host: str, port: int) -> str:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, port))
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60)
        time.sleep(3.0)
    return "held"


# Memory


class Memory:
    """Resident memory of a process, and of all its descendants together, in MiB."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak = 0.0
        self.peak_of_children = 0.0

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Look ten times a second until the context ends."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(0.1):
                self.peak = max(self.peak, self.now())
                self.peak_of_children = max(self.peak_of_children, sum(map(_resident, _descendants(self._pid))))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def now(self) -> float:
        return _resident(self._pid)


def _resident(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:  # it ended
        return 0.0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0) / 1024


def _descendants(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in path.read_text(encoding="ascii").split():
                yield int(child)
                yield from _descendants(int(child))


if __name__ == "__main__":
    main()
