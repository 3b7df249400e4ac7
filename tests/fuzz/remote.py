"""Damaged answers of remote servers through the remote runner, a great many of them:

    python -m tests.fuzz.remote --count 200000 --seed 1 [--json FILE]

Each is damaged anew from a small corpus of every endpoint (``remote_answers``), and sent by a server in a process of
its own. An answer is drawn from the seed and its number alone. The exit code is 1 when the runner broke: an error that
is none of the job's, a run that did not end, or an event loop that stood still.

How long the loop stands is seen by a task that wants to run every 5 ms: the time it waited longer, but at most the
processor time that the loop's thread took meanwhile, because a machine that is busy with others makes every loop wait.
"""

import argparse
import asyncio
import multiprocessing
import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Final

from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from omni_jobs.errors import InvalidRequest, ModelError, RemoteUnavailable, RequestTooLarge
from tests.fuzz.remote_answers import ENDPOINTS, DamagedAnswer, damaged
from tests.remote_stages import prompt, recording, remote_runner
from tests.services.openai_server import Connection, OpenAIServer, Reply, Request
from workers.consumer.stage_host import keep_what_is_loaded
from workers.runners.remote.remote_runner import RemoteRunner

__all__ = ["Fuzzed", "LoopWatch", "fuzz", "server_process"]

_AT_ONCE: Final = 8  # many more would make one turn of the loop long by their number alone
_HANG_S: Final = 60.0  # a run has ``total_s`` for each of its exchanges, on a machine that others use
_STANDS_S: Final = 0.05
_TICK_S: Final = 0.005
_NUMBER: Final = re.compile(rb"number-([a-z]+)-(\d+)-(\d+)-")
_SETTINGS: Final = {"silence_s": 5, "total_s": 5, "max_answer_bytes": 1 << 20}
_PATHS: Final = (
    *("POST /v1/chat/completions", "POST /v1/responses", "POST /v1/audio/speech", "POST /v1/audio/transcriptions"),
    *("POST /v1/images/generations", "POST /v1/videos", "GET /v1/videos/video_1", "GET /v1/videos/video_1/content"),
    *("GET /made/1.png", "DELETE /v1/videos/video_1"),
)


@dataclass
class LoopWatch:
    """How long the event loop stood at most, in seconds."""

    stood_s: float = 0.0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self) -> None:
        while True:
            began, used = time.monotonic(), time.thread_time()
            await asyncio.sleep(_TICK_S)
            late = time.monotonic() - began - _TICK_S
            self.stood_s = max(self.stood_s, min(late, time.thread_time() - used))


@dataclass
class Fuzzed:
    """What a run met: ``outcomes`` are "answered" or an error's code, ``broken`` is what the runner must not do."""

    count: int = 0
    wall_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    stood_s: float = 0.0

    def figures(self) -> list[Figure]:
        return [
            figure("answers", "", [self.count]),
            figure("answers per second", "1/s", [self.count / self.wall_s]),
            *(figure(f"outcome: {name}", "", [times]) for name, times in sorted(self.outcomes.items())),
            figure("errors that are none of the job's, hangs", "", [len(self.broken)], at_most=0),
            figure("slowest run", "s", [self.slowest_s], at_most=_HANG_S),
            figure("longest that the event loop stood", "ms", [1000 * self.stood_s], at_most=1000 * _STANDS_S),
            figure("most memory", "MiB", [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]),
        ]


async def fuzz(count: int, seed: int, *, until: float | None = None, progress: Progress | None = None) -> Fuzzed:
    """Send that many damaged answers to runners of every endpoint, eight at once, or until ``time.monotonic()``."""
    found, watch, numbers = Fuzzed(), LoopWatch(), iter(range(count))
    task = None if progress is None else progress.add_task("answers", total=count)

    async def work(runners: list[RemoteRunner]) -> None:
        for number in numbers:
            if until is not None and time.monotonic() >= until:
                return
            endpoint = ENDPOINTS[number % len(ENDPOINTS)]
            await _one(runners[number % len(ENDPOINTS)], endpoint, seed, number, found)
            if progress is not None and task is not None:
                progress.advance(task)

    begin = time.monotonic()
    async with server_process(_serve_damaged) as url:
        contexts = [remote_runner(url, endpoint, **_SETTINGS) for endpoint in ENDPOINTS]
        runners = [await context.__aenter__() for context in contexts]
        async with watch.watching():
            await asyncio.gather(*(work(runners) for _ in range(_AT_ONCE)))
        if not all(runner.healthy for runner in runners):
            found.broken.append("a runner is no longer healthy")
        for context in contexts:
            await context.__aexit__(None, None, None)
    found.wall_s = time.monotonic() - begin
    found.stood_s = watch.stood_s
    return found


async def _one(runner: RemoteRunner, endpoint: str, seed: int, number: int, found: Fuzzed) -> None:
    name = f"number-{endpoint}-{seed}-{number}-"
    recordings = [recording(data=name.encode())] * (1 + number % 2) if endpoint == "transcriptions" else []
    asked = prompt(endpoint, name, recordings=recordings, audio_format="wav", capture=endpoint == "speech")
    began = time.monotonic()
    try:
        async with asyncio.timeout(_HANG_S):
            output = await runner.run(asked, lambda progress: None)
        if output.text is not None:
            output.text.encode()
        outcome = "answered"
    except (ModelError, RemoteUnavailable, InvalidRequest, RequestTooLarge) as error:
        outcome = error.code
        if len(str(error)) > 2000:
            found.broken.append(f"{name}: an error of {len(str(error))} characters")
    except Exception as error:  # noqa: BLE001 — what no answer may cause
        outcome = "broken"
        found.broken.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    found.count += 1
    found.outcomes[outcome] += 1
    found.slowest_s = max(found.slowest_s, time.monotonic() - began)


# The server, in a process of its own, so that its work is none of the watched loop's.


@asynccontextmanager
async def server_process(reply: Reply) -> AsyncIterator[str]:
    """Serve with ``reply``, a function of a module, and give the base URL."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, reply), daemon=True)
    process.start()
    theirs.close()
    try:
        yield await asyncio.to_thread(ours.recv)
    finally:
        ours.close()
        process.terminate()
        await asyncio.to_thread(process.join)


def _serve(pipe: Pipe, reply: Reply) -> None:
    async def serve() -> None:
        async with OpenAIServer() as server:
            server.answers |= {path: [reply] for path in _PATHS}
            server.requests = _Forgetful()
            pipe.send(server.url)
            await asyncio.to_thread(_wait_for_end, pipe)

    asyncio.run(serve())


class _Forgetful(list[Request]):
    def append(self, request: Request) -> None:
        """Keep nothing."""


def _wait_for_end(pipe: Pipe) -> None:
    try:
        pipe.recv()
    except EOFError:
        os._exit(0)


async def _serve_damaged(request: Request, connection: Connection) -> None:
    found = _NUMBER.search(request.body)
    if found is None:  # what a first answer led to
        answer = damaged("images" if "made" in request.path else "videos", 0, len(request.path) + os.getpid() % 1000)
    else:
        answer = damaged(found[1].decode(), int(found[2]), int(found[3]))
    await send(answer, connection)


async def send(answer: DamagedAnswer, connection: Connection) -> None:
    """Send an answer as it says."""
    if not answer.chunk:
        await connection.head(answer.status, {**answer.headers, "Content-Length": str(len(answer.body))})
        await connection.send(answer.body)
    else:
        await connection.head(answer.status, {**answer.headers, "Transfer-Encoding": "chunked"})
        step = max(answer.chunk, len(answer.body) // 2000)
        for at in range(0, len(answer.body), step):
            await connection.chunk(answer.body[at : at + step])
        if not answer.broken:
            await connection.send(b"0\r\n\r\n")
    if answer.broken:
        connection.reset()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.remote", description="Damaged answers of servers.")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    keep_what_is_loaded()  # as a worker does once its stage is loaded
    until = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    with Progress() as progress:
        found = asyncio.run(fuzz(arguments.count, arguments.seed, until=until, progress=progress))
    for why in found.broken[:100]:
        print(why)
    figures = found.figures()
    report(figures, arguments.json)
    sys.exit(0 if all(figure.met is not False for figure in figures) else 1)


if __name__ == "__main__":
    main()
