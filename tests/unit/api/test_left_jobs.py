"""``LeftJobs``: a server that stops writes the notes of the clients that have just left."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from omni_jobs.api.left_jobs import LeftJobs
from omni_jobs.errors import DatabaseUnavailable


class SlowJobs:
    def __init__(self) -> None:
        self.noted: list[str] = []
        self.may_write = threading.Event()

    def abandon(self, job_ids: Sequence[str]) -> None:
        self.may_write.wait(30)
        self.noted += job_ids


class NoJobs:
    def abandon(self, job_ids: Sequence[str]) -> None:
        raise DatabaseUnavailable


async def test_a_note_is_written_before_the_server_has_stopped() -> None:
    jobs: Any = SlowJobs()
    left = LeftJobs(jobs)
    left.leave(["job-1", "job-2"])
    closing = asyncio.create_task(left.close())
    await asyncio.sleep(0)
    assert not closing.done()
    jobs.may_write.set()
    await closing
    assert jobs.noted == ["job-1", "job-2"]


async def test_an_outage_harms_nobody() -> None:
    jobs: Any = NoJobs()
    left = LeftJobs(jobs)
    left.leave(["job-1"])
    await left.close()
