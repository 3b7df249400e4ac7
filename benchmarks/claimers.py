"""``Claimers``: processes that claim at the same moment, because threads of one process would share its interpreter."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Self

from benchmarks.echo import complete
from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs

__all__ = ["Claimers"]

_READY_S = 120.0
_RETRY_FOR_S = 120.0


class Claimers:
    """A context manager that runs processes, each of which claims as one worker of ``worker_ids`` in each database."""

    def __init__(self, count: int, urls: Sequence[str], at_most: int) -> None:
        """Prepare ``count`` processes, which claim ``at_most`` stage runs at a time from databases with these URLs."""
        self.worker_ids = [f"claimer-{number}" for number in range(count)]
        self._urls = urls
        self._at_most = at_most
        self._processes: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        """Start the processes, and return once all are ready."""
        context = multiprocessing.get_context("spawn")
        start = context.Barrier(len(self.worker_ids))
        for worker_id in self.worker_ids:
            ours, theirs = context.Pipe()
            arguments = (worker_id, self._urls, self._at_most, start, theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that the end of a process ends the wait for its answer
            self._processes.append((process, ours))
        for _, pipe in self._processes:
            if not pipe.poll(_READY_S):
                raise SystemExit("a claiming process does not start")
            pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        for process, pipe in self._processes:
            pipe.close()
            process.join()

    def claim(self, database: int, times: int) -> tuple[int, float]:
        """Claim ``times`` times in each process, from one moment on, and then complete what was claimed.

        The database, by the number of its URL, has the workers of ``worker_ids`` already.
        Return the number of stage runs, and the seconds from the first process's begin to the last one's last answer.
        """
        for _, pipe in self._processes:
            pipe.send((database, times))
        answers = [pipe.recv() for _, pipe in self._processes]
        claimed, begins, ends = zip(*answers, strict=True)
        return sum(claimed), max(ends) - min(begins)


def _serve(worker_id: str, urls: Sequence[str], at_most: int, start: Barrier, pipe: Connection) -> None:
    sides = [Jobs(Database(url, connections=1, retry_for_s=_RETRY_FOR_S)) for url in urls]
    pipe.send(None)
    while True:
        try:
            database, times = pipe.recv()
        except EOFError:
            return
        jobs = sides[database]
        start.wait()
        begin = time.perf_counter()  # of the whole machine: CLOCK_MONOTONIC
        claims = [claim for _ in range(times) for claim in jobs.claim(worker_id, at_most).claims]
        end = time.perf_counter()
        complete(jobs, worker_id, claims)
        pipe.send((len(claims), begin, end))
