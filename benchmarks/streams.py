"""Streams of events: what open ones cost an API process, and how late a token reaches a client.

    python -m benchmarks.streams --json FILE [--streams 1000] [--seconds 20] [--tokens 2000] [--quick]

No engine runs. A worker's own parts (``GrowingText``, ``ProgressReports``, ``Ledger``) report the tokens of jobs, from
this process, which also reads the streams. The API is a process of its own, whose processor time is read.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.progress import track

from benchmarks.figures import Figure, figure, report
from benchmarks.processor_time import cpu_s
from benchmarks.services import DATABASES, database
from omni_jobs.broker.broker import Broker
from omni_jobs.broker.relay import Relay
from omni_jobs.client import Client
from omni_jobs.database.database import Database
from omni_jobs.jobs import Claim, Jobs, NewWorker
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from workers.execution.ledger import Ledger
from workers.execution.observers.progress import ProgressReports
from workers.execution.observers.run_observer import StepTimes
from workers.runners.growing_text import GrowingText

_PIECE = "t{:06} "
_PIECE_CHARS = 8
_TOKENS_PER_S = 50.0
_BODY = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
_WRITING = 20  # of the open streams' jobs, in the second figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--streams", type=int, default=1000, help="open at once (default 1000)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="for which they are watched, each time (default 20)"
    )
    parser.add_argument("--tokens", type=int, default=2000, help="of the one text, for the latency (default 2000)")
    parser.add_argument("--runs", type=int, default=5, help="times each (default 5)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few and short: whether it works")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.streams, arguments.seconds, arguments.tokens, arguments.runs = 20, 1.0, 50, 1
    found: list[Figure] = []
    for kind in arguments.database or DATABASES:
        found += asyncio.run(_of(kind, arguments))
    report(found, arguments.json)


async def _of(kind: str, asked: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database(kind) as url:
        settings = Settings(data_dir=Path(directory) / "data", database_url=url, max_waits_per_tenant=10**6)
        settings = settings.model_copy(update={"max_waits": 10**6, "max_connections": asked.streams + 100})
        with EmbeddedStack(settings, pipelines=[]) as stack, Client(stack.url) as client:
            api = next(child.pid or 0 for child in stack.children() if child.name == "api")
            lines = (json.dumps(_BODY).encode() for _ in range(asked.streams))
            job_ids = [answer.id or "" for answer in client.submit_bulk(lines)]
            async with _worker(stack.settings, len(job_ids)) as worker:
                return [each async for each in _measured(kind, asked, stack.url, api, worker, job_ids)]


async def _measured(
    kind: str, asked: argparse.Namespace, url: str, api: int, worker: "_Worker", job_ids: Sequence[str]
) -> AsyncGenerator[Figure, None]:
    shares: dict[int, list[float]] = {}
    async with AsyncExitStack() as opened:
        for job_id in track(job_ids, description=f"{kind}: opening streams"):
            reader = await opened.enter_async_context(_stream(url, job_id))
            opened.callback(asyncio.create_task(_drained(reader)).cancel)
        for writing in (0, min(_WRITING, len(job_ids) - 1)):  # the last job's text is for the latency
            for _ in track(range(asked.runs), description=f"{kind}: {writing} jobs write"):
                writers = [asyncio.create_task(worker.write(job_id, 10**6)) for job_id in job_ids[:writing]]
                before, began = cpu_s(api), time.perf_counter()
                await asyncio.sleep(asked.seconds)
                share = (cpu_s(api) - before) / (time.perf_counter() - began)
                shares.setdefault(writing, []).append(100 * share)
                for writer in writers:
                    writer.cancel()
    yield figure(f"{kind}: {len(job_ids)} open streams, of a core", "%", shares[0], at_most=10)
    yield figure(f"{kind}: the same, {max(shares)} of the jobs make text", "%", shares[max(shares)])
    late = sorted(await _latencies(worker, url, job_ids[-1], asked.tokens))
    yield figure(f"{kind}: from a token to the client's event, p50", "ms", late, at_most=150)
    yield figure(f"{kind}: from a token to the client's event, p99", "ms", [late[int(0.99 * len(late))]])


class _Worker:
    """Holds the first stage runs of all jobs, and makes texts of them."""

    def __init__(self, ledger: Ledger, claims: dict[str, Claim]) -> None:
        self._ledger = ledger
        self._claims = claims
        self._reports = ProgressReports(ledger)

    async def write(self, job_id: str, tokens: int) -> list[float]:
        """Make a text, and return when each of its tokens was made."""
        claim, times = self._claims[job_id], StepTimes(time.time())
        text = GrowingText(lambda progress: self._reports.progressed(claim, times, progress), None)
        made = []
        begin = time.perf_counter()
        for number in range(tokens):
            await asyncio.sleep(max(0.0, begin + number / _TOKENS_PER_S - time.perf_counter()))
            made.append(time.perf_counter())
            text.add(_PIECE.format(number))
        text.end()
        return made


@asynccontextmanager
async def _worker(settings: Settings, jobs: int) -> AsyncGenerator[_Worker, None]:
    pipelines = load_pipelines(settings.resolved_stage_configs)
    echo = pipelines.named("echo")
    loop = asyncio.get_running_loop()
    with (
        closing(Database(settings.resolved_database_url)) as opened,
        closing(Broker(settings, pipelines)) as broker,
        closing(Relay(broker)) as relay,
    ):
        new = NewWorker("bench", "bench", echo.stage_id("first"), "host", os.getpid(), jobs, echo.version)
        ledger = Ledger(
            Jobs(opened), new, relay, settings,
            keep_trying=lambda: True, on_cancel=print, on_pause=lambda is_paused: None, on_fenced=print,
        )  # fmt: skip
        await asyncio.to_thread(ledger.take_slot, loop)
        await asyncio.to_thread(ledger.serve)
        try:
            claims = await ledger.claim(jobs, is_idle=True)
            yield _Worker(ledger, {claim.job_id: claim for claim in claims.claims})
        finally:
            await asyncio.to_thread(ledger.close)


@asynccontextmanager
async def _stream(url: str, job_id: str) -> AsyncGenerator[asyncio.StreamReader, None]:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(
        f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: {where.netloc}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    if b" 200 " not in (answer := await reader.readline()):
        raise SystemExit(f"{job_id}: {answer!r}")
    try:
        yield reader
    finally:
        writer.close()


async def _drained(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def _latencies(worker: _Worker, url: str, job_id: str, tokens: int) -> list[float]:
    """Return how many milliseconds after it was made each token came to the client."""
    async with _stream(url, job_id) as reader:
        while not (await reader.readline()).startswith(b"event: stage"):
            pass
        await asyncio.sleep(1.0)  # so that the worker knows that somebody watches
        writing = asyncio.create_task(worker.write(job_id, tokens))
        came: list[float] = []
        async for data in _texts(reader):
            now = time.perf_counter()
            whole = (data["offset"] + len(data["text"])) // _PIECE_CHARS
            came += [now] * (whole - len(came))
            if len(came) == tokens:
                break
        return [1000 * (at - made) for at, made in zip(came, await writing, strict=True)]


async def _texts(reader: asyncio.StreamReader) -> AsyncGenerator[dict[str, Any], None]:
    event = b""
    while line := await reader.readline():
        name, _, value = line.rstrip(b"\r\n").partition(b": ")
        if name == b"event":
            event = value
        elif name == b"data" and event == b"text":
            yield json.loads(value)


if __name__ == "__main__":
    main()
