"""Submitting: single jobs from 32 keep-alive clients, and a bulk of 50,000, to one API process.

    python -m benchmarks.submit --json FILE [--jobs 5000] [--bulk 50000] [--runs 5] [--keys] [--quick]

No worker runs: what is measured is the API, SQL and the doorbells. The load comes from this process.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

from rich.progress import track

from benchmarks.figures import Figure, figure, report
from benchmarks.http_load import Answers, post_all
from benchmarks.services import DATABASES, database
from omni_jobs.client import Client
from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants

CLIENTS = 32


def main() -> None:
    arguments = _arguments()
    if arguments.quick:
        arguments.jobs, arguments.bulk, arguments.runs = 100, 500, 1
    found: list[Figure] = []
    for kind in arguments.database or DATABASES:
        if arguments.keys:
            found += _of_keys(kind, arguments.jobs, arguments.runs)
        else:
            found += _of(kind, arguments.jobs, arguments.bulk, arguments.runs)
    report(found, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--jobs", type=int, default=5000, help="single submits of each run (default 5000)")
    parser.add_argument("--bulk", type=int, default=50_000, help="jobs of the bulk (default 50000)")
    parser.add_argument("--runs", type=int, default=5, help="times each (default 5)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--keys", action="store_true", help="single submits with API keys against those without")
    parser.add_argument("--quick", action="store_true", help="few jobs, one run: whether it works")
    return parser.parse_args()


def _of(kind: str, jobs: int, bulk: int, runs: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database(kind) as url:
        settings = Settings(data_dir=Path(directory) / "data", database_url=url)
        with EmbeddedStack(settings, pipelines=[]) as stack, Client(stack.url) as client:
            api = next(child.pid or 0 for child in stack.children() if child.name == "api")
            where = urlsplit(stack.url)
            host, port = where.hostname or "", where.port or 0
            _single(host, port, min(jobs, 200))  # warm
            rates, slow = [], []
            for _ in track(range(runs), description=f"{kind}: single submits"):
                answers = _single(host, port, jobs)
                rates.append(jobs / answers.seconds)
                slow.append(sorted(answers.latencies)[int(0.99 * jobs)] * 1000)
            list(client.submit_bulk(_lines(100)))
            before = _peak_mib(api)
            seconds_of_bulk = [_bulk(client, bulk) for _ in track(range(min(runs, 3)), description=f"{kind}: bulk")]
            grown = max(_peak_mib(api) - before, 0.001)
    yield figure(f"{kind}: {CLIENTS} clients, submits/s", "submits/s", rates, at_least=500)
    yield figure(f"{kind}: {CLIENTS} clients, a submit's p99", "ms", slow)
    yield figure(f"{kind}: a bulk of {bulk}", "s", seconds_of_bulk, at_most=30)
    yield figure(f"{kind}: the API's peak memory, grown by the bulks", "MiB", [grown], at_most=32)


def _of_keys(kind: str, jobs: int, runs: int) -> Iterator[Figure]:
    """Submit with and without keys in turn, to two stacks of which one is idle, so that both meet the same noise."""
    with ExitStack() as opened:
        ways = []
        for auth in ("off", "keys"):
            directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-"))
            url = opened.enter_context(database(kind))
            settings = Settings(data_dir=Path(directory) / "data", database_url=url, auth=auth)
            stack = opened.enter_context(EmbeddedStack(settings, pipelines=[]))
            where = urlsplit(stack.url)
            ways.append((where.hostname or "", where.port or 0, _key(stack.settings) if auth == "keys" else None))
        for way in ways:
            _single(*way[:2], min(jobs, 200), way[2])  # warm
        ratios = []
        for number in track(range(runs), description=f"{kind}: with keys and without"):
            took = {way: _single(*way[:2], jobs, way[2]).seconds for way in ways[:: 1 if number % 2 else -1]}
            ratios.append(took[ways[0]] / took[ways[1]])
    yield figure(f"{kind}: submits/s with keys ÷ without", "", ratios, at_least=0.95)


def _key(settings: Settings) -> str:
    with closing(Database(settings.resolved_database_url)) as opened:
        Tenants(opened).create("acme")
        return ApiKeys(opened).create("acme", ["submit"]).key


def _body(number: int) -> bytes:
    return json.dumps({"model": "echo", "messages": [{"role": "user", "content": f"Hello {number}"}]}).encode()


def _single(host: str, port: int, jobs: int, api_key: str | None = None) -> Answers:
    bodies = [_body(number) for number in range(jobs)]
    return post_all(host, port, "/v1/jobs", bodies, clients=CLIENTS, api_key=api_key)


def _lines(jobs: int) -> Iterator[bytes]:
    return (_body(number) for number in range(jobs))


def _bulk(client: Client, jobs: int) -> float:
    begin = time.perf_counter()
    refused = sum(answer.error is not None for answer in client.submit_bulk(_lines(jobs)))
    if refused:
        raise SystemExit(f"{refused} jobs were refused")
    return time.perf_counter() - begin


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    main()
