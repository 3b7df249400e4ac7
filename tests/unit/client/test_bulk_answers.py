"""The answers of a bulk that is sent once, and of one that is sent several times: the steps, without a network."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from omni_jobs.client.bulk_answers import answers_of_tries
from omni_jobs.client.steps import HttpRequest, Item, NextChunk, Pause, step_after
from omni_jobs.errors import DatabaseUnavailable, OmniJobsError, ServerUnavailable, Unauthenticated
from omni_jobs.http.error_answers import shape_of
from omni_jobs.views import BulkAnswer

REQUEST = HttpRequest("POST", "/v1/jobs/bulk", is_streamed=True)

Answer = dict[str, Any]
Try = Sequence[Answer | OmniJobsError]
Content = Sequence[bytes | OmniJobsError]


def made(line: int) -> Answer:
    return {"line": line, "id": f"job-{line}", "created": True}


def refused(line: int, error: OmniJobsError) -> Answer:
    return {"line": line, "error": shape_of(error)}


def as_bytes(*answers: Answer) -> bytes:
    return b"".join(json.dumps(answer).encode() + b"\n" for answer in answers)


LAST = {"lines": 1, "accepted": 1, "refused": 0}


def outcome(*tries: Content, pauses_s: Sequence[float]) -> tuple[list[Answer | OmniJobsError], list[float]]:
    """All that the caller gets, its error at the end if there is one; and the pauses.

    Each try is the pieces of an answer, or an error in place of a piece, as a connection that breaks raises it.
    """
    left = [list(content) for content in tries]
    found: list[Answer | OmniJobsError] = []
    pauses: list[float] = []
    chunks: list[bytes | OmniJobsError] = []
    steps = answers_of_tries(REQUEST, pauses_s)
    try:
        step = step_after(steps)
        while step is not None:
            given: object = None
            if isinstance(step, HttpRequest):
                assert step is REQUEST
                chunks = left.pop(0)
                given = httpx2.Response(200)
            elif isinstance(step, NextChunk):
                given = chunks.pop(0) if chunks else b""
            elif isinstance(step, Item):
                found.append(step.value.model_dump(exclude_unset=True))
            else:
                assert isinstance(step, Pause)
                pauses.append(step.seconds)
            step = step_after(steps, given)
    except OmniJobsError as error:
        found.append(error)
    assert left == []
    return found, pauses


def sent_once(*content: bytes) -> list[Answer | OmniJobsError]:
    found, pauses = outcome(content, pauses_s=())
    assert pauses == []
    return found


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_answers_come_in_pieces(size: int) -> None:
    content = as_bytes(made(1), LAST)
    assert sent_once(*(content[start : start + size] for start in range(0, len(content), size))) == [made(1)]


def test_answers_without_their_last_are_broken_off() -> None:
    """A proxy may end an answer as if it were whole."""
    answer, error = sent_once(as_bytes(made(1)))
    assert answer == made(1)
    assert isinstance(error, ServerUnavailable)
    assert "broke off" in str(error)


@pytest.mark.parametrize("end", range(len(as_bytes(made(1), LAST))))
def test_answers_that_are_cut_anywhere_are_broken_off(end: int) -> None:
    *answers, error = sent_once(as_bytes(made(1), LAST)[:end])
    assert answers == ([made(1)] if end >= len(as_bytes(made(1))) else [])
    assert isinstance(error, ServerUnavailable)


def test_what_is_no_answer_is_an_error_of_ours() -> None:
    (error,) = sent_once(b"<html>\n")
    assert "no valid BulkAnswer" in str(error)


def tries(*scripts: Try) -> list[Content]:
    """The bytes of each try. An error ends it: ServerUnavailable as a broken connection, any other in the last line."""
    contents: list[Content] = []
    for script in scripts:
        content: list[bytes | OmniJobsError] = []
        for each in script:
            if isinstance(each, ServerUnavailable):
                content.append(each)
            elif isinstance(each, OmniJobsError):
                content.append(as_bytes({**LAST, "error": shape_of(each)}))
            else:
                content.append(as_bytes(each))
        if not any(isinstance(each, OmniJobsError) for each in script):
            content.append(as_bytes(LAST))
        contents.append(content)
    return contents


def given(*scripts: Try) -> list[Answer | type[OmniJobsError]]:
    """What the caller gets of these tries, with the class in place of an error."""
    found, pauses = outcome(*tries(*scripts), pauses_s=(1.0, 2.0))
    assert len(pauses) == len(scripts) - 1
    for pause, longest in zip(pauses, (1.0, 2.0), strict=False):
        assert longest * 0.75 <= pause <= longest
    return [type(each) if isinstance(each, OmniJobsError) else each for each in found]


def test_each_line_is_answered_once() -> None:
    away = ServerUnavailable()
    again = {"line": 1, "id": "job-1", "created": False}
    assert given([away], [made(1), away], [again, made(2), made(4)]) == [made(1), made(2), made(4)]


def test_the_lines_that_an_outage_met_are_answered_by_the_next_try() -> None:
    outage, wrong = DatabaseUnavailable(), refused(1, OmniJobsError())
    first: Try = [wrong, made(2), refused(3, outage), made(4), outage]
    assert given(first, [wrong, made(2), made(3), made(4), made(5)]) == [wrong, *map(made, (2, 3, 4, 5))]


def test_the_last_try_tells_all() -> None:
    outage = DatabaseUnavailable()
    met = [made(1), refused(2, outage)]
    assert given([*met, outage], [*met, outage], [*met, outage]) == [*met, DatabaseUnavailable]


def test_what_no_other_try_mends_is_raised_at_once() -> None:
    assert given([made(1), Unauthenticated()]) == [made(1), Unauthenticated]


def test_an_outage_of_one_line_alone_is_its_answer() -> None:
    answers = [made(1), refused(2, DatabaseUnavailable()), made(3)]
    assert given(answers) == answers


def test_an_answer_says_all_that_the_server_says() -> None:
    """Its error has OpenAI's fields too; what does not apply is left out."""
    (answer,) = sent_once(as_bytes(refused(7, DatabaseUnavailable()), LAST))
    assert answer == refused(7, DatabaseUnavailable())
    assert BulkAnswer.model_validate(answer).error.type == "server_error"  # type: ignore[union-attr]
