"""omni_jobs.tenants.lookup_cache: what is kept and for how long, and what strangers may cost. Time stands still."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from omni_jobs.errors import DatabaseUnavailable, ServerBusy
from omni_jobs.tenants import lookup_cache
from omni_jobs.tenants.lookup_cache import KEPT_S, Lookups

PATIENCE_S = 30.0


class Table:
    """What is to be found, how often it was asked for, and a clock."""

    def __init__(self, **there: str) -> None:
        self.there: dict[str, str] = there
        self.true_for_s = float("inf")
        self.asked: Counter[str] = Counter()
        self.now = 1000.0
        self.calls = 0
        self.away = False
        self.open = threading.Event()
        self.open.set()

    def look_up(self, names: Sequence[str]) -> dict[str, tuple[str, float]]:
        self.asked.update(names)
        self.calls += 1
        assert list(names) == ["a"] or self.open.wait(PATIENCE_S)
        if self.away:
            raise DatabaseUnavailable
        return {name: (self.there[name], self.true_for_s) for name in names if name in self.there}

    def lookups(self) -> Lookups[str]:
        return Lookups(self.look_up, clock=lambda: self.now)


async def test_what_is_there_and_what_is_not_are_kept_for_moments() -> None:
    table = Table(a="one")
    found = table.lookups()
    for _ in range(3):
        assert (await found.get("a"), await found.get("b")) == ("one", None)
    assert table.asked == {"a": 1, "b": 1}
    del table.there["a"]
    table.there["b"] = "two"
    table.now += KEPT_S
    assert (await found.get("a"), await found.get("b")) == (None, "two")
    assert table.asked == {"a": 2, "b": 2}


async def test_nothing_is_kept_for_longer_than_it_is_true() -> None:
    table = Table(a="one")
    table.true_for_s = 0.5
    found = table.lookups()
    assert await found.get("a") == "one"
    table.there.clear()
    table.now += 0.5
    assert await found.get("a") is None


async def test_requests_that_come_at_once_share_a_lookup() -> None:
    table = Table(b="one")
    table.open.clear()
    found = table.lookups()
    first, second = (asyncio.create_task(found.get("b")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()  # a client that leaves takes the answer from nobody
    table.open.set()
    assert await second == "one"
    assert table.asked == {"b": 1}


async def test_an_error_is_not_kept() -> None:
    table = Table(a="one")
    table.away = True
    found = table.lookups()
    with pytest.raises(DatabaseUnavailable):
        await found.get("a")
    table.away = False
    assert await found.get("a") == "one"


async def test_strangers_hold_up_nobody_who_is_known() -> None:
    table = Table(a="one")
    found = table.lookups()
    await found.get("a")
    table.now += KEPT_S
    table.open.clear()
    strangers = [asyncio.create_task(found.get(f"x{n}")) for n in range(lookup_cache._MOST_OF_NETWORK)]
    await asyncio.sleep(0)
    with pytest.raises(ServerBusy):
        await found.get("one too many")
    assert await found.get("a") == "one"
    table.there["elsewhere"] = "two"
    other = asyncio.create_task(found.get("elsewhere", "another network"))
    table.open.set()
    assert await other == "two"
    assert set(await asyncio.gather(*strangers)) == {None}
    assert table.calls < 20
    assert await found.get("one too many") is None


async def test_little_is_kept_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_cache, "_MOST_KEPT", 5)
    table = Table(a="one")
    found = table.lookups()
    await found.get("a")
    for number in range(20):
        await found.get(f"x{number}")
    await found.get("a")
    assert table.asked["a"] == 1  # what is not there drives out nothing that is
    assert len(found._missing) == 5
