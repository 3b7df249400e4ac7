"""A job's events as they come, over HTTP, on both databases: what is told, where a stream goes on, and how it ends."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

import httpx2
import hypothesis
import pytest
from httpx2 import ServerSentEvent
from hypothesis import HealthCheck, given, strategies

from omni_jobs.jobs import TextPiece
from omni_jobs.settings import Settings
from omni_jobs.views import JobView
from tests.event_reader import CutReader
from tests.integration.api_server import ApiServer, checked_error, serve
from tests.integration.hand_worker import HandWorker

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
WORDS = "漢字 \u2028 e\u0301 😀\n\ndata: [DONE]\r\n\x00 the end. "
LATE_S = 30.0
TEXTS = strategies.lists(strategies.text(min_size=1, max_size=400), min_size=1, max_size=6)


def submitted(api: ApiServer) -> str:
    answer = api.http.post("/v1/jobs", json=ECHO)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]  # type: ignore[no-any-return]


@contextmanager
def stream(api: ApiServer, job_id: str, query: str = "", **headers: str) -> Iterator[Iterator[ServerSentEvent]]:
    url = f"/v1/jobs/{job_id}/events{query}"
    named = {"Accept": "text/event-stream"} | {name.replace("_", "-"): value for name, value in headers.items()}
    with api.http.stream("GET", url, headers=named, timeout=LATE_S) as answer:
        if answer.status_code != 200:
            answer.read()
            raise httpx2.HTTPStatusError(answer.text, request=answer.request, response=answer)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        yield iter(httpx2.EventSource(answer))


def until(events: Iterator[ServerSentEvent], name: str) -> list[tuple[str, Any]]:
    """The events up to the first of this name."""
    seen = []
    for event in events:
        seen.append((event.event, json.loads(event.data)))
        if event.event == name:
            return seen
    raise AssertionError(f"no {name}: {seen}")


def text_of(events: list[tuple[str, Any]], stage: str) -> str:
    """What a client that does as the docs say has of a stage's text: an event's text stands from its offset on."""
    text, attempt = "", 0
    for name, data in events:
        if name == "text" and data["stage"] == stage:
            if data["attempt"] != attempt:
                text, attempt = "", data["attempt"]
            assert data["offset"] == len(text), "a gap, or a double"
            text += data["text"]
    return text


def test_a_job_is_told_from_its_submit_to_its_end(api: ApiServer) -> None:
    job_id = submitted(api)
    worker = HandWorker(api, job_id)
    with stream(api, job_id) as events:
        [(_, job)] = until(events, "job")
        assert (job["id"], job["status"]) == (job_id, "queued")
        assert [data["status"] for _, data in until(events, "stage") + until(events, "stage")] == ["queued", "pending"]
        first = worker.claim("first")
        assert until(events, "stage") == [("stage", {"stage": "first", "attempt": 1, "status": "running"})]
        worker.write(first, 0, "One, ", done=2)
        told = until(events, "text")
        its = {"stage": "first", "attempt": 1}
        assert told == [
            ("progress", its | {"done": 2, "total": None, "unit": "tokens", "resumed_at": None}),
            ("text", its | {"offset": 0, "text": "One, "}),
        ]
        worker.lose(first)
        assert until(events, "stage") == [("stage", {"stage": "first", "attempt": 1, "status": "queued"})]
        again = worker.claim("first")
        worker.write(again, 0, "two, ", picture="data:image/png;base64,AAAA")
        told = until(events, "text")
        assert [name for name, _ in told] == ["stage", "progress", "picture", "text"]
        assert told[2][1]["picture"] == "data:image/png;base64,AAAA"
        assert told[3][1] == {"stage": "first", "attempt": 2, "offset": 0, "text": "two, "}
        worker.complete(again, result={"text": "two, three"}, artifacts=[worker.artifact(again)])
        told = until(events, "artifact")
        assert told[0] == ("text", {"stage": "first", "attempt": 2, "offset": 5, "text": "three"})
        assert ("stage", {"stage": "first", "attempt": 2, "status": "succeeded"}) in told
        assert api.http.get(told[-1][1]["url"]).content == b"RIFF"
        worker.complete(worker.claim("second"), result={"text": "done"})
        told = until(events, "job.completed")
        assert text_of(told, "second") == "done"
        assert told[-1][1]["id"] == 1
        assert next(events, None) is None  # it is the last


def test_the_events_of_an_ended_job_are_told_at_once(api: ApiServer) -> None:
    job_id = submitted(api)
    worker = HandWorker(api, job_id)
    worker.complete(worker.claim("first"), result={"text": WORDS})
    api.http.post(f"/v1/jobs/{job_id}/cancel")
    for headers in ({}, {"Last_Event_ID": "1"}):
        with stream(api, job_id, **headers) as events:
            told = until(events, "job.cancelled")
            assert next(events, None) is None
        assert told[0][0] == "job"
        assert text_of(told, "first") == WORDS
    listed = api.http.get(f"/v1/jobs/{job_id}/events").json()
    assert [each["type"] for each in listed] == ["job.cancelled"]
    assert api.http.get(f"/v1/jobs/{job_id}/events?starting_after=1").json() == []


def test_who_lists_the_events_of_a_job_asks_for_it(api: ApiServer) -> None:
    job_id = submitted(api)
    api.services.jobs.note_requests(left=[job_id])
    assert api.http.get(f"/v1/jobs/{job_id}/events").status_code == 200
    assert not api.services.jobs.abandoned([job_id])


def test_only_kept_events_have_ids_and_those_before_are_not_told_again(api: ApiServer) -> None:
    job_id = submitted(api)
    worker = HandWorker(api, job_id)
    first = worker.claim("first")
    api.http.post(f"/v1/jobs/{job_id}/cancel")
    with stream(api, job_id) as events:
        last_id, kept = "", []
        for event in events:
            assert (event.id != last_id) == event.event.startswith("job.")  # the reader keeps the last id
            if event.id != last_id:
                last_id = event.id
                kept.append((event.id, event.event))
            if event.event == "job.cancelling":
                worker.lose(first)
        assert kept == [("1", "job.cancelling"), ("2", "job.cancelled")]
    with stream(api, job_id, "?starting_after=1") as events:
        assert [event.event for event in events if event.id] == ["job.cancelled"]


@hypothesis.settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(lost=TEXTS, parts=TEXTS, seed=strategies.integers(0, 2**32))
def test_a_stream_cut_at_any_byte_goes_on_at_another_server(
    lost: list[str], parts: list[str], seed: int, api: ApiServer, settings: Settings
) -> None:
    """An attempt is lost in between. The text has no gap and no double."""
    job_id = submitted(api)
    worker = HandWorker(api, job_id)
    whole = "".join(parts)
    with serve(settings) as other, ThreadPoolExecutor(1) as pool:
        urls = [f"http://{each.host}:{each.port}" for each in (api, other)]
        reader = CutReader(urls, job_id, "first", Random(seed))
        reading: Future[str] = pool.submit(reader.read)
        for attempt, pieces in enumerate((lost, parts), 1):
            claim = worker.claim("first")
            start = 0
            for each in pieces:
                worker.write(claim, start, each)
                start += len(each)
            if attempt == 1:
                worker.lose(claim)
        worker.complete(claim, result={"text": whole})
        worker.complete(worker.claim("second"))
        assert reading.result(LATE_S) == whole


def test_a_stream_ends_where_its_job_is_deleted_or_the_server_stops(api: ApiServer) -> None:
    deleted, stays = submitted(api), submitted(api)
    with stream(api, stays) as others:
        until(others, "stage")
        with stream(api, deleted) as events:
            until(events, "stage")
            api.services.jobs.cancel(deleted)
            api.services.jobs.delete(deleted)
            told = [(event.event, json.loads(event.data)) for event in events]
        # Both may fall between two looks.
        assert told[-1][0] == "job.cancelled" or told[-1][1]["error"]["code"] == "not_found"
        api.stop()
        assert [event for event in others if event.event != "stage"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?starting_after=-1", "starting_after"),
        ("?starting_after=99999999999", "starting_after"),
        ("?starting_after=x", "starting_after"),
        ("?starting_after=1_0", "starting_after"),
        ("?text_from=first", "text_from"),
        ("?text_from=first:1:-1", "text_from"),
        ("?text_from=first:1:²", "text_from"),
        ("?text_from=:1:1", "text_from"),
        ("?text_from=first:1:1,", "text_from"),
        ("?text_from=first:1:1&text_from=second:1:1", "text_from"),
        ("?text_from=" + "a" * 2001, "text_from"),
    ],
)
def test_what_no_stream_can_begin_with_is_refused(api: ApiServer, query: str, field: str) -> None:
    answer = api.http.get(f"/v1/jobs/{submitted(api)}/events{query}", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 422
    assert checked_error(422, answer.headers, answer.content)["field"] == field


def test_the_stream_of_no_job_and_one_too_many_are_refused(api: ApiServer) -> None:
    answer = api.http.get("/v1/jobs/job-none/events", headers={"Accept": "text/event-stream"})
    assert checked_error(404, answer.headers, answer.content)["code"] == "not_found"
    api.services.watch._most = 1
    job_id = submitted(api)
    with stream(api, job_id) as events:
        until(events, "job")
        answer = api.http.get(f"/v1/jobs/{job_id}/events", headers={"Accept": "text/event-stream"})
        assert answer.status_code == 503
        assert checked_error(503, answer.headers, answer.content)["retryable"]


def test_a_text_from_beyond_the_end_or_of_another_attempt_begins_anew_or_has_nothing(api: ApiServer) -> None:
    job_id = submitted(api)
    worker = HandWorker(api, job_id)
    worker.complete(worker.claim("first"), result={"text": "abc"})
    worker.complete(worker.claim("second"))
    for place, rest in (("first:1:1", "bc"), ("first:1:900", ""), ("first:7:2", "abc"), ("other:1:2", "abc")):
        with stream(api, job_id, f"?text_from={place}") as events:
            told = until(events, "job.completed")
        assert "".join(data["text"] for name, data in told if name == "text") == rest


def test_head_says_what_get_would_and_ends(api: ApiServer) -> None:
    url, headers = f"/v1/jobs/{submitted(api)}/events", {"Accept": "text/event-stream"}
    answer = api.http.head(url, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert api.http.head("/v1/jobs/job-none/events", headers=headers).status_code == 404


def test_a_text_that_no_result_has_is_told_to_its_end(api: ApiServer) -> None:
    """Of a stage whose text the job's modalities do not name."""
    job_id = submitted(api)
    worker = HandWorker(api, job_id)
    with stream(api, job_id) as events:
        until(events, "job")
        first = worker.claim("first")
        worker.write(first, 0, WORDS)
        worker.jobs.report_progress([], [TextPiece(first.stage_run_id, 1, len(WORDS), "And this.")])  # never looked at
        worker.complete(first, result={})
        worker.complete(worker.claim("second"))
        assert text_of(until(events, "job.completed"), "first") == WORDS + "And this."


def test_what_happens_while_a_glance_is_told_is_told_after_it(api: ApiServer) -> None:
    """The job completes between the glance at it and the reading of its kept events."""
    job_id = submitted(api)
    worker = HandWorker(api, job_id)
    first = worker.claim("first")
    jobs = api.services.jobs
    read = jobs.events

    def read_late(*arguments: Any) -> Any:
        jobs.events = read  # type: ignore[method-assign]
        worker.complete(first, result={"text": WORDS})
        worker.complete(worker.claim("second"))
        return read(*arguments)

    jobs.events = read_late  # type: ignore[method-assign]
    with stream(api, job_id) as events:
        assert text_of(until(events, "job.completed"), "first") == WORDS


def test_the_end_before_a_retry_is_no_end(api: ApiServer) -> None:
    job_id = submitted(api)
    worker = HandWorker(api, job_id)
    assert api.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert api.http.post(f"/v1/jobs/{job_id}/retry").status_code == 200
    with stream(api, job_id) as events:
        told = until(events, "job.retried")
        worker.complete(worker.claim("first"))
        worker.complete(worker.claim("second"))
        told += until(events, "job.completed")
    assert [name for name, _ in told if name.startswith("job.")] == ["job.retried", "job.completed"]


def test_a_large_job_is_encoded_on_a_thread(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "漢字 and 😀, " * 20_000
    job_id = submitted(api)
    worker = HandWorker(api, job_id)
    worker.complete(worker.claim("first"))
    worker.complete(worker.claim("second"), result={"text": text})
    dump = JobView.model_dump_json
    on_loop: list[bool] = []

    def dumped(job: JobView, **more: Any) -> str:
        on_loop.append(asyncio._get_running_loop() is not None)
        return dump(job, **more)

    monkeypatch.setattr(JobView, "model_dump_json", dumped)
    with stream(api, job_id) as events:
        [(_, job)] = until(events, "job")
        assert until(events, "job.completed")
    assert job["result"]["text"] == text
    assert on_loop == [False]
