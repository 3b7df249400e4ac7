import pytest

from omni_jobs.api.cached_value import CachedValue
from omni_jobs.errors import DatabaseUnavailable


class Table:
    """Counting it takes a while; ``now`` is its clock."""

    def __init__(self, takes_s: float) -> None:
        self.now = 100.0
        self.counts = 0
        self.takes_s = takes_s
        self.away = False

    def count(self) -> int:
        if self.away:
            raise DatabaseUnavailable("away")
        self.counts += 1
        self.now += self.takes_s
        return self.counts


def test_what_takes_a_moment_is_always_fresh() -> None:
    table = Table(takes_s=0.01)
    cached = CachedValue(table.count, clock=lambda: table.now)
    assert [cached.get() for _ in range(3)] == [1, 2, 3]


def test_what_takes_long_is_kept_for_a_while() -> None:
    table = Table(takes_s=0.5)
    cached = CachedValue(table.count, clock=lambda: table.now)
    assert [cached.get() for _ in range(3)] == [1, 1, 1]
    table.now += 9.0
    assert cached.get() == 1
    table.now += 1.0
    assert cached.get() == 2


def test_an_error_is_raised_and_not_kept() -> None:
    table = Table(takes_s=0.5)
    table.away = True
    cached = CachedValue(table.count, clock=lambda: table.now)
    with pytest.raises(DatabaseUnavailable):
        cached.get()
    table.away = False
    assert cached.get() == 1
