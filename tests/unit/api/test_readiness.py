"""omni_jobs.api.readiness: what many who ask cost, and what a check that hangs does to the others."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from omni_jobs.api.readiness import SharedCheck, SharedChecks
from omni_jobs.errors import BrokerUnavailable, DatabaseUnavailable

PATIENCE_S = 30.0
LIMIT_S = 0.05


class Part:
    """Something that is checked: counts its checks, fails or hangs when it is told to."""

    def __init__(self) -> None:
        self.checks = self.most_at_once = self._at_once = 0
        self.error: Exception | None = None
        self.open = threading.Event()
        self.open.set()

    def check(self) -> None:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        self.checks += 1
        try:
            assert self.open.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
        finally:
            self._at_once -= 1


@pytest.fixture
def part() -> Iterator[Part]:
    part = Part()
    yield part
    part.open.set()


class Clock:
    now = 100.0


def shared(part: Part, clock: Clock, limit_s: float = PATIENCE_S) -> SharedChecks:
    return SharedChecks({"part": SharedCheck(part.check, BrokerUnavailable, limit_s)}, lambda: clock.now)


async def test_an_outcome_is_kept_for_a_second(part: Part) -> None:
    clock = Clock()
    checks = shared(part, clock)
    assert [await checks.outcomes() for _ in range(3)] == [{"part": None}] * 3
    part.error = DatabaseUnavailable("away")
    assert await checks.outcomes() == {"part": None}
    clock.now += 1.0
    assert await checks.outcomes() == {"part": part.error}
    assert part.checks == 2


async def test_the_last_outcome_is_there_without_waiting(part: Part) -> None:
    clock = Clock()
    checks = shared(part, clock)
    part.error = BrokerUnavailable("away")
    assert checks.last("part") is None
    assert await checks.outcomes() == {"part": part.error}
    assert checks.last("part") is part.error
    clock.now += 1.0
    part.open.clear()
    assert checks.last("part") is part.error  # while the next check goes on
    clock.now += PATIENCE_S
    assert "no answer" in str(checks.last("part"))


async def test_many_who_ask_at_once_share_a_check(part: Part) -> None:
    checks = shared(part, Clock())
    part.open.clear()
    asked = [asyncio.create_task(checks.outcomes()) for _ in range(400)]
    await asyncio.sleep(0)
    asked[0].cancel()  # one who leaves takes the outcome from nobody
    part.open.set()
    assert await asyncio.gather(*asked[1:]) == [{"part": None}] * 399
    assert part.checks == 1


async def test_a_check_that_hangs_has_failed_and_is_not_begun_again(part: Part) -> None:
    part.open.clear()
    checks = SharedChecks({"part": SharedCheck(part.check, BrokerUnavailable, LIMIT_S)})
    for _ in range(3):
        found = await asyncio.wait_for(checks.outcomes(), PATIENCE_S)
        assert isinstance(found["part"], BrokerUnavailable)
    assert part.checks == 1
    part.open.set()
    async with asyncio.timeout(PATIENCE_S):
        while (await checks.outcomes())["part"] is not None:
            await asyncio.sleep(0.01)
    assert part.most_at_once == 1


async def test_what_hangs_leaves_a_thread_to_the_others(part: Part) -> None:
    part.open.clear()
    well = Part()
    checks = SharedChecks(
        {
            "hangs": SharedCheck(part.check, BrokerUnavailable, LIMIT_S),
            "well": SharedCheck(well.check),
            "too": SharedCheck(well.check),
        }
    )
    found = await asyncio.wait_for(checks.outcomes(), PATIENCE_S)
    assert isinstance(found["hangs"], BrokerUnavailable)
    assert (found["well"], found["too"]) == (None, None)


async def test_a_bug_in_a_check_is_logged_and_no_crash(part: Part, caplog: pytest.LogCaptureFixture) -> None:
    part.error = ZeroDivisionError("secret")
    found = await shared(part, Clock()).outcomes()
    assert "secret" not in str(found["part"])
    assert "ZeroDivisionError" in caplog.text
