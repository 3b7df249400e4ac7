"""How long each revision of the schema takes with a million jobs, and how long a live writer waits for it.

    python -m benchmarks.migrations --json FILE [--jobs 1000000] [--database sqlite] [--quick]

``benchmarks.history`` fills the database, which is then taken back to revision 0001, and forward again, one revision
after another. Meanwhile a writer writes to the large tables in transactions of a millisecond, as a live stack does. Its
longest wait in the time of a revision is that revision's longest lock.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from benchmarks.figures import Figure, figure, report
from benchmarks.history import fill
from benchmarks.services import DATABASES, database
from omni_jobs.database.database import Database
from omni_jobs.database.migrations import revisions
from omni_jobs.settings import Settings

_LONGEST_S = 60.0
_WRITES = (
    "UPDATE jobs SET retries = retries WHERE id = (SELECT max(id) FROM jobs)",
    "UPDATE stage_runs SET attempt = attempt WHERE id = (SELECT max(id) FROM stage_runs)",
    "UPDATE events SET number = number WHERE id = (SELECT max(id) FROM events)",
    "UPDATE attempt_errors SET at = at WHERE stage_run_id = (SELECT max(stage_run_id) FROM attempt_errors)",
)
_PAUSE_S = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="in the database (default 1,000,000)")
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few: whether it works")
    asked = parser.parse_args()
    if asked.quick:
        asked.jobs = 2000
    report([each for kind in asked.database or DATABASES for each in _of(kind, asked.jobs)], asked.json)


def _of(kind: str, jobs: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database(kind) as url:
        settings = Settings(data_dir=Path(directory) / "data", database_url=url, max_waits=10**4)
        settings = settings.model_copy(update={"max_waits_per_tenant": 10**4})
        with (
            closing(Database(settings.resolved_database_url)) as db,
            closing(Database(settings.resolved_database_url, retry_for_s=120)) as live,
        ):
            db.migrate()
            fill(db, settings, jobs)
            yield from _way(f"{kind}, back", db, live, [each.number for each in revisions()][-2::-1])
            yield from _way(f"{kind}, forward", db, live, [each.number for each in revisions()][1:])


def _way(name: str, db: Database, live: Database, numbers: list[str]) -> Iterator[Figure]:
    total_s = 0.0
    for number in numbers:
        with _Writer(live) as writer:
            began = time.perf_counter()
            db.migrate(number)
            took_s = time.perf_counter() - began
        total_s += took_s
        yield figure(f"{name} to {number}", "s", [took_s])
        yield figure(f"{name} to {number}: longest wait of a writer", "s", [writer.longest_s])
    yield figure(f"{name}, all", "s", [total_s], at_most=_LONGEST_S)


class _Writer:
    """Writes to the large tables in a thread, in the time of a ``with``, and measures its longest wait."""

    def __init__(self, live: Database) -> None:
        self.longest_s = 0.0
        self._live = live
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> "_Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        while True:
            for statement in _WRITES:
                began = time.perf_counter()
                self._live.run(lambda tx, statement=statement: tx.execute(text(statement)))  # type: ignore[misc]
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
            if self._stopped.wait(_PAUSE_S):
                return


if __name__ == "__main__":
    main()
