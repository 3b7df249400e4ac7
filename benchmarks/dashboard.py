"""The dashboard's pages before a database with the jobs of thirty days, and what open tabs cost the API's process.

    python -m benchmarks.dashboard --json FILE [--jobs 1000000] [--runs 20] [--database sqlite] [--quick]

``benchmarks.history`` fills the database: 100 tenants, about 1,000 kinds of errors, samples of 30 days. Each page is
asked for in turn with all others, so that none is answered with what was rendered for the request before; but charts
are, which are kept for ten seconds to a minute. A tab asks for its page's fragments every 2 s, as its browser does,
with the ETags of what it has. An open job has its event stream as well, and asks for its fragment whenever the stream
tells something, which here is nothing.
"""

import argparse
import asyncio
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx2
import psycopg
from rich.progress import track

from benchmarks.figures import Figure, figure, report
from benchmarks.history import fill
from benchmarks.processor_time import cpu_s
from benchmarks.services import DATABASES, database
from omni_jobs.dashboard.fragments import POLLED_S
from omni_jobs.dashboard.navigation import NAVIGATION
from omni_jobs.database.database import Database
from omni_jobs.jobs import JobFilter, Jobs
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState

_TENANT = "tenant-07"
_TENANT_HEADER = "X-Tenant"
_RENDERED_S = POLLED_S + 0.1  # how long what was rendered is kept, and a little
_TAB_S = 2.0
_LOOK_S = 10.0  # after which the page of an open job is drawn anew
_Tab = Callable[..., Coroutine[None, None, None]]
"""Is open ``at`` so many seconds from now on, until it is cancelled."""
_LISTS = (
    "/jobs?status=failed",
    "/jobs?status=queued",
    "/jobs?pipeline=echo&stage=second",
    "/jobs?error_code=model_error",
    "/jobs?metadata=app%3Dapp-3",
    "/jobs?status=completed&metadata=app%3Dapp-3&pipeline=echo",
    "/jobs?status=queued&metadata=app%3Dapp-3",
    "/jobs?metadata=app%3Dapp-3&pipeline=none",
    "/jobs?stage=second&error_code=model_error",
    "/jobs?created_before={middle}",
)
_SPANS = ("/errors?over=hour", "/errors?over=month")
_TABS = (
    ("/fragments/overview", "/fragments/newest"),
    ("/fragments/jobs",),
    ("/fragments/jobs?status=failed",),
)
_OPERATORS = (
    f"/jobs?tenant={_TENANT}",
    f"/jobs?tenant={_TENANT}&status=failed",
    "/?over=day",
    "/?over=month",
    f"/tenants/{_TENANT}",
    f"/audit?target={_TENANT}",
    "/audit?before={act}",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="in the database (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=20, help="times each page is asked for (default 20)")
    parser.add_argument("--tabs", type=int, default=50, help="open at once (default 50)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which tabs are open, each time (default 20)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few and short: whether it works")
    asked = parser.parse_args()
    if asked.quick:
        asked.jobs, asked.runs, asked.tabs, asked.seconds = 2000, 1, 4, 2.5
    report([each for kind in asked.database or DATABASES for each in _of(kind, asked)], asked.json)


def _of(kind: str, asked: argparse.Namespace) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database(kind) as url:
        settings = Settings(data_dir=Path(directory) / "data", database_url=url, max_waits=10**4)
        settings = settings.model_copy(update={"max_waits_per_tenant": 10**4})
        with closing(Database(settings.resolved_database_url)) as db:
            db.migrate()
            fill(db, settings, asked.jobs)
            jobs = Jobs(db)
            paths = _paths(jobs)
            old = jobs.acts(before=(time.time() - 15 * 86_400, "act-"), at_most=1)[0]
            if url is not None:
                _vacuum(url)
            of_operators = [path.format(act=f"{old.at!r},{old.id}") for path in _OPERATORS]
        with EmbeddedStack(settings, pipelines=[]) as stack, httpx2.Client(base_url=stack.url, trust_env=False) as http:
            yield from _pages(f"{kind}, operator", http, [*paths, *of_operators], asked.runs)
            api = next(child.pid or 0 for child in stack.children() if child.name == "api")
            yield from _tabs(kind, stack.url, api, asked)
        behind_a_proxy = settings.model_copy(update={"auth": "proxy", "tenant_header": _TENANT_HEADER})
        headers = {_TENANT_HEADER: _TENANT}
        with (
            EmbeddedStack(behind_a_proxy, pipelines=[]) as stack,
            httpx2.Client(base_url=stack.url, headers=headers, trust_env=False) as http,
        ):
            yield from _pages(f"{kind}, a tenant", http, paths, asked.runs)


def _vacuum(url: str) -> None:
    """Do what PostgreSQL has done of itself in the thirty days, and would begin to do beside the first pages."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _paths(jobs: Jobs) -> list[str]:
    """The paths of pages: all in the navigation, lists by filters, and jobs as they end, of a tenant."""
    of_states = [jobs.list(JobFilter(states=frozenset([state]), tenant=_TENANT), limit=1).jobs for state in JobState]
    ids = [found.id for (found,) in filter(None, of_states)]
    page = jobs.list(JobFilter(tenant=_TENANT), limit=10)
    middle = jobs.list(JobFilter(states=frozenset([JobState.FAILED])), limit=100).jobs[-1].created_at
    lists = [path.format(middle=f"{middle:%Y-%m-%dT%H:%M:%SZ}") for path in _LISTS]
    older = [f"/jobs?cursor={page.next_cursor}"]
    return [*(entry.path for entry in NAVIGATION), *_SPANS, *lists, *older, *(f"/jobs/{job_id}" for job_id in ids)]


def _pages(whose: str, http: httpx2.Client, paths: Sequence[str], runs: int) -> Iterator[Figure]:
    """Return the p95 of each page that is shown to these; a page that they may not see is left out."""
    shown = [path for path in paths if _is_shown(http, path)]
    took: dict[str, list[float]] = defaultdict(list)
    for _ in track(range(runs), description=f"{whose}: {len(shown)} pages"):
        time.sleep(_RENDERED_S)
        for path in shown:
            asked = time.perf_counter()
            http.get(path).raise_for_status()
            name = "/jobs/{id}" if path.startswith("/jobs/") else path
            took[name].append(1000 * (time.perf_counter() - asked))
    for name, each in took.items():
        yield figure(f"{whose}: {name}, p95", "ms", [sorted(each)[math.ceil(0.95 * len(each)) - 1]], at_most=300)


def _is_shown(http: httpx2.Client, path: str) -> bool:
    answer = http.get(path)
    if answer.status_code in (httpx2.codes.FORBIDDEN, httpx2.codes.NOT_FOUND):
        return False
    answer.raise_for_status()
    return True


# Tabs


def _tabs(kind: str, url: str, api: int, asked: argparse.Namespace) -> Iterator[Figure]:
    with httpx2.Client(base_url=url, trust_env=False) as http:
        waiting = [each["id"] for each in http.get("/v1/jobs", params={"status": "queued", "limit": 50}).json()["jobs"]]
    lists = [partial(_poll, paths=_TABS[number % len(_TABS)]) for number in range(asked.tabs)]
    jobs = [partial(_follow, job_id=job_id) for job_id in waiting[: asked.tabs]]
    for name, tabs, most in (("tabs", lists, 5), ("open jobs", jobs, 10)):
        shares = asyncio.run(_cost(url, api, tabs, asked.seconds, 1 if asked.quick else 5))
        yield figure(f"{kind}: {len(tabs)} {name}, of a core", "%", shares, at_most=most)


async def _cost(url: str, api: int, tabs: Sequence[_Tab], seconds: float, runs: int) -> list[float]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=url, trust_env=False, limits=limits, timeout=30) as http:
        tasks = [asyncio.create_task(tab(http, at=number * _TAB_S / len(tabs))) for number, tab in enumerate(tabs)]
        await asyncio.sleep(2 * _TAB_S)
        shares = []
        for _ in range(runs):
            before, began = cpu_s(api), time.perf_counter()
            await asyncio.sleep(seconds)
            shares.append(100 * (cpu_s(api) - before) / (time.perf_counter() - began))
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return shares


async def _poll(http: httpx2.AsyncClient, at: float, paths: Sequence[str]) -> None:
    """Ask for fragments as a page does that is open from then on."""
    await asyncio.sleep(at)
    etags = dict.fromkeys(paths, "")
    while True:
        for path, etag in etags.items():
            answer = await http.get(path, headers={"If-None-Match": etag})
            if answer.status_code != httpx2.codes.NOT_MODIFIED:
                etags[path] = answer.raise_for_status().headers["etag"]
        await asyncio.sleep(_TAB_S)


async def _follow(http: httpx2.AsyncClient, at: float, job_id: str) -> None:
    """Listen to a job's events and draw it anew, as its page does that is open from then on."""
    await asyncio.sleep(at)
    async with asyncio.TaskGroup() as parts:
        parts.create_task(_listen(http, job_id))
        parts.create_task(_draw(http, job_id))


async def _draw(http: httpx2.AsyncClient, job_id: str) -> None:
    while True:
        (await http.get(f"/fragments/jobs/{job_id}")).raise_for_status()
        await asyncio.sleep(_LOOK_S)


async def _listen(http: httpx2.AsyncClient, job_id: str) -> None:
    events = f"/v1/jobs/{job_id}/events"
    async with http.stream("GET", events, headers={"Accept": "text/event-stream"}, timeout=None) as stream:
        async for _ in stream.aiter_raw():
            pass
    raise SystemExit(f"{events} ended")


if __name__ == "__main__":
    main()
