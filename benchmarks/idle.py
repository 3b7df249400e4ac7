"""An idle system: how long after its submit a job starts.

    python -m benchmarks.idle --json FILE [--jobs 200] [--quick]

One job at a time through the embedded stack's echo pipeline, by the database's clock: from the row's
creation to its first claim. And by the client's: from the call of submit to the end of the job.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.progress import track

from benchmarks.figures import Figure, figure, report
from benchmarks.services import DATABASES, database
from omni_jobs.client import Client
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView

BODY = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--jobs", type=int, default=200, help="one after another (default 200)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few jobs: whether it works")
    arguments = parser.parse_args()
    jobs = 10 if arguments.quick else arguments.jobs
    report([found for kind in arguments.database or DATABASES for found in _of(kind, jobs)], arguments.json)


def _of(kind: str, jobs: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database(kind) as url:
        settings = Settings(data_dir=Path(directory) / "data", database_url=url)
        with EmbeddedStack(settings, pipelines=["echo"]) as stack, Client(stack.url) as client:
            _ended(client)  # warm
            ended = []
            for _ in track(range(jobs), description=kind):
                time.sleep(random.uniform(0.02, 0.08))  # noqa: S311 — not in step with any poll
                ended.append(_ended(client))
    started = sorted(_ms(job.created_at, job.stages[0].started_at) for job in ended)
    whole = sorted(_ms(job.created_at, job.finished_at) for job in ended)
    for name, found, target in (("submit → started", started, 15.0), ("submit → done, two stages", whole, None)):
        yield figure(f"{kind}: {name}, p50", "ms", found, at_most=target)
        yield figure(f"{kind}: {name}, p99", "ms", [found[int(0.99 * len(found))]])


def _ended(client: Client) -> JobView:
    job = client.submit(BODY)
    while not (job := client.get(job.id)).status.is_final:
        time.sleep(0.002)
    if job.status is not JobState.COMPLETED:
        raise SystemExit(f"{job.id} is {job.status.value}")
    return job


def _ms(begin: object, end: object) -> float:
    seconds: float = (end - begin).total_seconds()  # type: ignore[operator]
    return seconds * 1000


if __name__ == "__main__":
    main()
