"""The answers of a bulk that is sent once, and of one that is sent several times."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from omni_jobs.client import bulk_answers
from omni_jobs.client.bulk_answers import answers_in, answers_of_tries
from omni_jobs.errors import DatabaseUnavailable, OmniJobsError, ServerUnavailable, Unauthenticated
from omni_jobs.views import BulkAnswer


def made(line: int) -> BulkAnswer:
    return BulkAnswer(line=line, id=f"job-{line}", created=True)


def refused(line: int, error: OmniJobsError) -> BulkAnswer:
    return BulkAnswer(line=line, error=error.to_dict())  # type: ignore[arg-type]


def as_bytes(*answers: Any) -> bytes:
    return b"".join(json.dumps(answer).encode() + b"\n" for answer in answers)


ONE = {"line": 1, "id": "job-1", "created": True}
LAST = {"lines": 1, "accepted": 1, "refused": 0}


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_answers_come_in_pieces(size: int) -> None:
    content = as_bytes(ONE, LAST)
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    assert list(answers_in(pieces)) == [made(1)]


def test_answers_without_their_last_are_broken_off() -> None:
    """A proxy may end an answer as if it were whole."""
    answers = answers_in([as_bytes(ONE)])
    assert next(answers) == made(1)
    with pytest.raises(ServerUnavailable, match="broke off"):
        next(answers)


@pytest.mark.parametrize("end", range(len(as_bytes(ONE, LAST))))
def test_answers_that_are_cut_anywhere_are_broken_off(end: int) -> None:
    with pytest.raises(ServerUnavailable, match="broke off"):
        list(answers_in([as_bytes(ONE, LAST)[:end]]))


Try = list[BulkAnswer | OmniJobsError]


class Tries:
    """Sends a bulk: the answers of the first try, of the second and so on, each up to its error."""

    def __init__(self, *tries: Try, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = list(tries)
        monkeypatch.setattr(bulk_answers, "BULK_PAUSES_S", (0.0, 0.0))

    def send(self) -> Iterator[BulkAnswer]:
        for answer in self.left.pop(0):
            if isinstance(answer, OmniJobsError):
                raise answer
            yield answer


def outcome(tries: Tries) -> Try:
    """All that the caller gets: the answers, and the error at their end if there is one."""
    found: Try = []
    try:
        for answer in answers_of_tries(tries.send):
            found.append(answer)
    except OmniJobsError as error:
        found.append(error)
    assert tries.left == []
    return found


def test_each_line_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    away = ServerUnavailable()
    again = BulkAnswer(line=1, id="job-1")
    tries = Tries([away], [made(1), away], [again, made(2), made(4)], monkeypatch=monkeypatch)
    assert outcome(tries) == [made(1), made(2), made(4)]


def test_the_lines_that_an_outage_met_are_answered_by_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    outage, wrong = DatabaseUnavailable(), refused(1, OmniJobsError())
    first: Try = [wrong, made(2), refused(3, outage), made(4), outage]
    tries = Tries(first, [wrong, made(2), made(3), made(4), made(5)], monkeypatch=monkeypatch)
    assert outcome(tries) == [wrong, *map(made, (2, 3, 4, 5))]


def test_the_last_try_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = DatabaseUnavailable()
    met: Try = [made(1), refused(2, outage), outage]
    assert outcome(Tries(met, met, met, monkeypatch=monkeypatch)) == met


def test_what_no_other_try_mends_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Unauthenticated()
    assert outcome(Tries([made(1), error], monkeypatch=monkeypatch)) == [made(1), error]


def test_an_outage_of_one_line_alone_is_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Try = [made(1), refused(2, DatabaseUnavailable()), made(3)]
    assert outcome(Tries(answers, monkeypatch=monkeypatch)) == answers
