"""Observers: each is told in order, and none harms the others or the one who tells."""

from typing import Any

import pytest

from omni_jobs.observers import Observers


class Listener:
    """Hears of one step."""

    def began(self, *what: object) -> None:
        """It began."""


class Noting(Listener):
    def __init__(self, heard: list[tuple[Any, ...]]) -> None:
        self.heard = heard

    def began(self, *what: object) -> None:
        self.heard.append((self, *what))


class Failing(Listener):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def began(self, *what: object) -> None:
        raise self.error


def test_nobody_hears_nothing() -> None:
    Observers[Listener]().tell(Listener.began, 1)


def test_each_is_told_in_order_whatever_those_before_raise(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[tuple[Any, ...]] = []
    one, two, broken = Noting(heard), Noting(heard), Failing(ValueError("no such number"))
    observers = Observers([one, Listener(), broken, Failing(KeyError("x")), two])
    for number in range(3):
        observers.tell(Listener.began, number, "more")
    assert heard == [(each, number, "more") for number in range(3) for each in (one, two)]
    assert [record.getMessage() for record in caplog.records] == ["the observer Failing failed in began"] * 2
    assert "no such number" in caplog.text
    broken.error = ZeroDivisionError()
    observers.tell(Listener.began)
    assert "ZeroDivisionError" in caplog.text, "another kind is logged once, too"


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_a_process_passes(end: BaseException) -> None:
    with pytest.raises(type(end)):
        Observers([Failing(end)]).tell(Listener.began)
