"""Python's switch interval: short while something asks for it, as it was afterwards."""

import sys
import threading
from collections.abc import Iterator

import pytest

from omni_jobs.http.process import short_switch_interval


@pytest.fixture(autouse=True)
def usual() -> Iterator[float]:
    usual = sys.getswitchinterval()
    yield usual
    sys.setswitchinterval(usual)


def test_the_interval_is_short_until_the_last_has_ended(usual: float) -> None:
    first, second = short_switch_interval(), short_switch_interval()
    with first:
        second.__enter__()
    assert sys.getswitchinterval() < usual / 10
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual
    with short_switch_interval():
        assert sys.getswitchinterval() < usual / 10


def test_one_who_fails_has_it_restored(usual: float) -> None:
    with pytest.raises(KeyError), short_switch_interval():
        raise KeyError
    assert sys.getswitchinterval() == usual


def test_many_threads_leave_it_as_it_was(usual: float) -> None:
    def shorten() -> None:
        for _ in range(2000):
            with short_switch_interval():
                pass

    threads = [threading.Thread(target=shorten) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getswitchinterval() == usual
