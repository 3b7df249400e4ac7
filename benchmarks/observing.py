"""What log lines and spans cost: CPU of two-stage jobs that do nothing, with them and without.

    python -m benchmarks.observing --json FILE [--jobs 4000] [--runs 10] [--quick]

The sides take turns, in each second round the other way around: no line of a transition; lines;
lines and spans, which a receiver in a process of its own takes. CPU is user and system time of all
processes of a side, of its broker and database too, and depends less on other work here than jobs/s.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal
from unittest.mock import patch

import psycopg
from rich.progress import Progress

from benchmarks.control_plane import freeze, is_done, new_jobs, wait_until
from benchmarks.costs import cpu_s_with_ended, parent_of, with_children
from benchmarks.figures import Figure, figure, report
from benchmarks.services import DATABASES, database
from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs, SubmitResult
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.tracing import attributes
from omni_jobs.tracing.spans import EndedSpan, open_spans

_AT_ONCE = 256  # jobs in one transaction of a submit
_SIDES: Final = ("no lines", "lines", "lines and spans")
_NO_LINES = """
import logging
logging.getLogger("omni_jobs.jobs.observers.transition_log").setLevel(logging.CRITICAL)
"""

Side = Callable[[int], float]
"""Runs a number of jobs; returns the µs of CPU that each took."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--jobs", type=int, default=4000, help="of each side and run (default 4000)")
    parser.add_argument("--runs", type=int, default=10, help="times each side, alternating (default 10)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few jobs, one run: whether it works")
    arguments = parser.parse_args()
    jobs, runs = (300, 1) if arguments.quick else (arguments.jobs, arguments.runs)
    found = [each for kind in arguments.database or DATABASES for each in _of(kind, jobs, runs)]
    report(found, arguments.json)


def _of(kind: str, jobs: int, runs: int) -> Iterator[Figure]:
    cpu_us: dict[str, list[float]] = {name: [] for name in _SIDES}
    with ExitStack() as stack:
        receiver = stack.enter_context(_receiver())
        sides = {name: stack.enter_context(_side(kind, name, receiver)) for name in _SIDES}
        progress = stack.enter_context(Progress())
        bar = progress.add_task(kind, total=(runs + 1) * len(sides))
        for turn in range(runs + 1):
            for name in _SIDES[:: 1 if turn % 2 else -1]:
                cost = sides[name](jobs if turn else min(jobs, 500))  # the first round warms all
                cpu_us[name] += [cost] if turn else []
                progress.advance(bar)
    for name, costs in cpu_us.items():
        yield figure(f"{kind}: CPU a job, {name}", "µs", costs)
    for before, behind, target in (("no lines", "lines", 0.97), ("lines", "lines and spans", 0.9)):
        ratios = [one / other for one, other in zip(cpu_us[before], cpu_us[behind], strict=True)]
        yield figure(f"{kind}: CPU, {before} / {behind}", "×", ratios, at_least=target)


@contextmanager
def _side(kind: str, name: str, receiver: str) -> Iterator[Side]:
    tracing: Literal["on", "off"] = "on" if name == "lines and spans" else "off"
    with ExitStack() as ends:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-")))
        url = ends.enter_context(database(kind))
        (directory / "site").mkdir()
        (directory / "site" / "sitecustomize.py").write_text(_NO_LINES if name == "no lines" else "")
        given = {
            "PYTHONPATH": str(directory / "site"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver,
            "NO_PROXY": "127.0.0.1",
        }
        with patch.dict(os.environ, given):  # the workers get these from this process
            settings = Settings(data_dir=directory / "data", database_url=url, tracing=tracing)
            stack = ends.enter_context(EmbeddedStack(settings, pipelines=["echo"]))
            spans = open_spans(settings, "benchmark")
        if spans is not None:
            ends.callback(spans.close)
        db = Database(stack.settings.resolved_database_url)
        ends.callback(db.close)
        broker = Broker(stack.settings, load_pipelines(stack.settings.resolved_stage_configs))
        ends.callback(broker.close)
        server = None
        if kind == "postgresql":
            sql = ends.enter_context(psycopg.connect(stack.settings.resolved_database_url))
            server = parent_of(sql.info.backend_pid)

        def cpu_s() -> float:
            pids = [child.pid for child in stack.children() if child.pid is not None]
            pids += [] if server is None else with_children(server)
            return time.process_time() + sum(map(cpu_s_with_ended, pids))

        def run(count: int) -> float:
            new = new_jobs(stack.settings, count)
            before = time.process_time()
            named = [None if spans is None else spans.new(None) for _ in new]
            naming_s = time.process_time() - before
            new = [replace(job, traceparent=name) for job, name in zip(new, named, strict=True)]
            freeze()
            before = cpu_s() - naming_s
            for start in range(0, count, _AT_ONCE):
                jobs = new[start : start + _AT_ONCE]
                began = time.time()
                answers = Jobs(db).submit_all(jobs)
                broker.ring({queue for each in answers if isinstance(each, SubmitResult) for queue in each.queues})
                if spans is not None:
                    ended = time.time()
                    for job in jobs:
                        known = {attributes.JOB: job.job_id, attributes.MODEL: "echo"}
                        name = job.traceparent or ""
                        spans.send(EndedSpan("submit echo", name, None, began, ended, "server", known))
            wait_until(lambda: is_done(db, new[-1].job_id))
            return (cpu_s() - before) * 1e6 / count

        yield run


@contextmanager
def _receiver() -> Iterator[str]:
    """The URL of a receiver of spans that answers 200 and keeps none, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_receive, args=(its,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def _receive(port: Connection) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        port.send(server.server_port)
        server.serve_forever()


if __name__ == "__main__":
    main()
