"""``RequestNotes``: one transaction writes all that came during the one before, also after an outage and at the end."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from omni_jobs.api import request_notes
from omni_jobs.api.request_notes import RequestNotes
from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.jobs import FirstTry, new_try

FIRST, OTHER, THIRD = (new_try("default", "sha256:1", 0) for _ in range(3))


class Jobs:
    """Keeps what is noted, a list of each transaction; it may be slow or away."""

    def __init__(self) -> None:
        self.transactions: list[list[Any]] = []
        self.begun = threading.Event()
        self.may_write = threading.Event()
        self.may_write.set()
        self.is_away = self.is_broken = False

    def note_requests(
        self,
        *,
        begun: Sequence[FirstTry] = (),
        lost: Sequence[FirstTry] = (),
        ended: Sequence[FirstTry] = (),
        left: Sequence[str] = (),
    ) -> None:
        self.begun.set()
        assert self.may_write.wait(30)
        if self.is_broken:
            raise RuntimeError("a bug")
        if self.is_away:
            raise DatabaseUnavailable
        kinds = {"begun": begun, "lost": lost, "ended": ended, "left": left}
        self.transactions.append([(kind, its) for kind, all_of in kinds.items() for its in all_of])

    @property
    def noted(self) -> list[Any]:
        return [each for transaction in self.transactions for each in transaction]

    async def has(self, *noted: Any) -> None:
        async with asyncio.timeout(30):
            while not any(set(noted) <= set(transaction) for transaction in self.transactions):
                await asyncio.sleep(0.001)


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest_asyncio.fixture
async def notes(jobs: Any) -> AsyncIterator[RequestNotes]:
    notes = RequestNotes(jobs)
    yield notes
    jobs.may_write.set()
    await asyncio.to_thread(notes.close)


async def test_one_transaction_notes_all_that_came_during_the_one_before(jobs: Jobs, notes: RequestNotes) -> None:
    jobs.may_write.clear()
    notes.end(OTHER)
    await asyncio.to_thread(jobs.begun.wait, 30)
    begins = [asyncio.create_task(notes.begin(each)) for each in (FIRST, THIRD)]
    await asyncio.sleep(0)
    notes.leave(["job-1", "job-2"], OTHER)
    notes.leave([])
    assert not any(each.done() for each in begins)
    jobs.may_write.set()
    await asyncio.wait_for(asyncio.gather(*begins), 30)
    together = [("begun", FIRST), ("begun", THIRD), ("lost", OTHER), ("left", "job-1"), ("left", "job-2")]
    assert jobs.transactions == [[("ended", OTHER)], together]


async def test_after_an_outage_what_nobody_waits_for_is_noted(
    jobs: Jobs, notes: RequestNotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_notes, "_PAUSE_S", 0.01)
    jobs.is_away = True
    notes.leave(["job-1"], FIRST)
    with pytest.raises(DatabaseUnavailable):
        await asyncio.wait_for(notes.begin(OTHER), 30)
    jobs.is_away = False
    await jobs.has(("lost", FIRST), ("left", "job-1"))
    assert ("begun", OTHER) not in jobs.noted


async def test_what_waits_in_an_outage_is_bounded(
    jobs: Jobs, notes: RequestNotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_notes, "_MOST_LATE", 2)
    jobs.is_away = True
    jobs.may_write.clear()
    for number in range(4):
        notes.leave([f"job-{number}"])
    jobs.may_write.set()
    with pytest.raises(DatabaseUnavailable):
        await notes.begin(FIRST)
    assert len(notes._late) <= 2
    jobs.is_away = False
    await asyncio.wait_for(notes.begin(OTHER), 30)
    assert ("left", "job-0") not in jobs.noted


async def test_a_bug_lets_nobody_wait_and_comes_once(jobs: Jobs, notes: RequestNotes) -> None:
    jobs.is_broken = True
    notes.leave(["job-1"])
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(notes.begin(FIRST), 30)
    jobs.is_broken = False
    await asyncio.wait_for(notes.begin(OTHER), 30)
    assert jobs.transactions == [[("begun", OTHER)]]


async def test_a_note_is_written_before_the_server_has_stopped(jobs: Any) -> None:
    jobs.may_write.clear()
    notes = RequestNotes(jobs)
    notes.leave(["job-1", "job-2"])
    closing = asyncio.create_task(asyncio.to_thread(notes.close))
    await asyncio.to_thread(jobs.begun.wait, 30)
    assert not closing.done()
    jobs.may_write.set()
    await closing
    assert jobs.transactions == [[("left", "job-1"), ("left", "job-2")]]


async def test_an_outage_does_not_keep_the_server_from_stopping(jobs: Any) -> None:
    jobs.is_away = True
    notes = RequestNotes(jobs)
    notes.leave(["job-1"])
    await asyncio.to_thread(notes.close)
