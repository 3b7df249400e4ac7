"""Streams of responses that break off and are taken up, whatever becomes of the attempts. The test is the worker."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any

import hypothesis
import openai
import pytest
from hypothesis import HealthCheck, example, given, strategies

from omni_jobs.api import cancelled_job
from omni_jobs.errors import ModelError
from omni_jobs.jobs import Failure
from omni_jobs.openai.responses import stream as response_stream
from omni_jobs.openai.responses.numbers import CLOSED, ENDED, OF_ATTEMPT, TEXT
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve
from tests.integration.hand_worker import HandWorker
from tests.integration.job_steps import pass_time
from tests.integration.openai.stock import Stock, stock_client
from tests.response_reader import Reader

LATE_S = 60.0
WORDS = "It was 漢字 and 😀 that"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


@pytest.fixture
def stock(api: ApiServer) -> Iterator[Stock]:
    with stock_client(f"http://{api.host}:{api.port}") as client:
        yield client


def submitted(api: ApiServer, stock: Stock) -> tuple[Reader, HandWorker]:
    """A response in the background, and the worker of its job, whose first stage is done."""
    response = stock.client.responses.create(model="echo", input="Hello", background=True)
    assert response.status == "queued"
    worker = HandWorker(api, response.id.replace("resp_", "job-"))
    worker.complete(worker.claim("first"))
    return Reader(response.id), worker


def until_abandoned(api: ApiServer, job_id: str) -> None:
    woken = threading.Event()
    for _ in range(int(LATE_S / 0.01)):
        if api.services.jobs.abandoned([job_id]):
            return
        woken.wait(0.01)
    raise AssertionError("nobody notes that its client has left")


def events_of(stock: Stock, reader: Reader, after: int | None = None) -> Any:
    """A stream of the events that come after this number; None: after those that the reader has."""
    after = reader.last if after is None else after
    return stock.client.responses.retrieve(reader.response_id, stream=True, starting_after=after)


# What comes when.

LETTERS = strategies.text("ab漢😀", min_size=1, max_size=8)
ATTEMPTS = strategies.lists(strategies.lists(LETTERS, min_size=1, max_size=3), min_size=1, max_size=4)


@hypothesis.settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(attempts=ATTEMPTS, agree=strategies.booleans(), seed=strategies.integers(0, 2**32))
@example(attempts=[["abab"], ["ab"], ["abab漢"]], agree=False, seed=1)
@example(attempts=[["a"], ["b"], ["a"]], agree=False, seed=2)
def test_a_stream_cut_at_any_event_goes_on_at_another_server(
    attempts: list[list[str]], agree: bool, seed: int, api: ApiServer, stock: Stock, settings: Settings
) -> None:
    """All attempts but the last are lost. Where they ``agree``, each writes what the one before did, and more."""
    reader, worker = submitted(api, stock)
    with (
        serve(settings) as other,
        stock_client(f"http://{other.host}:{other.port}") as second,
        ThreadPoolExecutor(1) as pool,
    ):
        reading: Future[Reader] = pool.submit(reader.read, [stock, second], Random(seed))
        before: list[str] = []
        for number, parts in enumerate(attempts, 1):
            claim = worker.claim("second")
            said = [*before, *parts] if agree else parts
            before = said
            start = 0
            for part in said:
                worker.write(claim, start, part)
                start += len(part)
            if number < len(attempts):
                worker.lose(claim)
        whole = "".join(said)
        worker.complete(claim, result={"text": whole})
        reading.result(LATE_S)
    *lost, last = reader.texts
    assert reader.texts[last] == whole
    assert reader.statuses == dict.fromkeys(lost, "incomplete") | {last: "completed"}
    if agree:
        assert not lost
    for item in lost:
        assert any("".join(parts).startswith(reader.texts[item]) for parts in attempts)
    assert (reader.response.status, reader.response.output_text) == ("completed", whole)
    assert reader.response.output[0].id == last


def test_an_attempt_that_writes_the_same_goes_on_with_the_message(api: ApiServer, stock: Stock) -> None:
    reader, worker = submitted(api, stock)
    events = events_of(stock, reader)
    claim = worker.claim("second")
    worker.write(claim, 0, WORDS)
    reader.until(events, WORDS)
    worker.lose(claim)
    again = worker.claim("second")
    worker.write(again, 0, WORDS[:5])
    worker.write(again, 5, WORDS[5:] + " shone", done=2)
    assert reader.until(events, f"{WORDS} shone") == ["output_text.delta"]
    worker.complete(again, result={"text": f"{WORDS} shone."}, finish_reason="length")
    for event in events:
        reader.take(event)
    assert list(reader.statuses.values()) == ["incomplete"]  # the text was cut
    assert (reader.response.status, reader.response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert reader.last == TEXT + len(f"{WORDS} shone.") + 4


def test_an_attempt_that_writes_another_text_has_a_message_of_its_own(api: ApiServer, stock: Stock) -> None:
    reader, worker = submitted(api, stock)
    events = events_of(stock, reader)
    claim = worker.claim("second")
    worker.write(claim, 0, WORDS)
    reader.until(events, WORDS)
    worker.lose(claim)
    again = worker.claim("second")
    worker.write(again, 0, "It was dark")
    closed, added, part, delta = [next(events) for _ in range(4)]
    for event in (closed, added, part, delta):
        reader.take(event)
    assert (closed.item.status, closed.item.content, closed.output_index) == ("incomplete", [], 0)
    assert closed.sequence_number == CLOSED
    assert (added.sequence_number, added.output_index) == (OF_ATTEMPT + 3, 1)
    assert (part.type, delta.delta) == ("response.content_part.added", "It was dark")
    worker.complete(again, result={"text": "It was dark."})
    for event in events:
        reader.take(event)
    assert (reader.response.output_text, len(reader.response.output)) == ("It was dark.", 1)
    assert list(reader.statuses.values()) == ["incomplete", "completed"]


def test_what_nobody_knows_any_longer_is_closed_even_if_it_was_the_same(api: ApiServer, stock: Stock) -> None:
    reader, worker = submitted(api, stock)
    events = events_of(stock, reader)
    claim = worker.claim("second")
    worker.write(claim, 0, WORDS)
    reader.until(events, WORDS)
    events.close()
    pass_time(api.services.db, 200)
    worker.jobs.rescue()
    worker.lose(claim)
    again = worker.claim("second")
    worker.complete(again, result={"text": WORDS})
    for event in events_of(stock, reader):
        reader.take(event)
    assert list(reader.texts.values()) == [WORDS, WORDS]
    assert list(reader.statuses.values()) == ["incomplete", "completed"]


def test_a_completed_response_is_told_from_anywhere_to_its_end(api: ApiServer, stock: Stock) -> None:
    reader, worker = submitted(api, stock)
    worker.complete(worker.claim("second"), result={"text": "a漢😀"})
    told = [event.to_dict() for event in events_of(stock, reader, -1)]
    numbers = [event["sequence_number"] for event in told]
    assert numbers == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12]
    for after in range(14):
        rest = [event.to_dict() for event in events_of(stock, reader, after)]
        due = [dict(event) for event in told if event["sequence_number"] > after]
        for event in due:
            if event["type"].endswith("text.delta"):
                event["delta"] = event["delta"][max(0, after - TEXT) :]
        assert rest == due
    for beyond in (OF_ATTEMPT - 3, CLOSED, ENDED, 5 * OF_ATTEMPT + 7, 2**53 - 1):
        assert list(events_of(stock, reader, beyond)) == []


def test_a_response_that_fails_closes_its_message(api: ApiServer, stock: Stock) -> None:
    reader, worker = submitted(api, stock)
    events = events_of(stock, reader)
    claim = worker.claim("second")
    worker.write(claim, 0, WORDS)
    reader.until(events, WORDS)
    worker.jobs.report([Failure(claim.stage_run_id, claim.attempt, "w-second", ModelError("it broke"))])
    closed, failed = events
    assert (closed.sequence_number, closed.item.status) == (CLOSED, "incomplete")
    assert (failed.sequence_number, failed.type) == (ENDED, "response.failed")
    error = failed.response.error
    assert (failed.response.status, error.code, error.type, error.message) == (
        "failed",
        "server_error",
        "model_error",
        "it broke",
    )
    again = list(events_of(stock, reader))
    assert [event.to_dict() for event in again] == [closed.to_dict(), failed.to_dict()]
    assert stock.client.responses.retrieve(reader.response_id) == failed.response


def test_a_response_that_is_cancelled_before_it_began_ends(api: ApiServer, stock: Stock) -> None:
    response = stock.client.responses.create(model="echo", input="Hello", background=True)
    for _ in range(2):
        cancelled = stock.client.responses.cancel(response.id)
        assert (cancelled.status, cancelled.error) == ("cancelled", None)
    events = list(stock.client.responses.retrieve(response.id, stream=True))
    assert [event.type.removeprefix("response.") for event in events] == ["created", "queued", "in_progress", "failed"]
    assert events[-1].response == cancelled
    assert api.http.get(f"/v1/jobs/{response.id.replace('resp_', 'job-')}").json()["status"] == "cancelled"


def test_a_whole_text_that_is_shorter_than_what_was_told_is_an_error(api: ApiServer, stock: Stock) -> None:
    reader, worker = submitted(api, stock)
    events = events_of(stock, reader)
    claim = worker.claim("second")
    worker.write(claim, 0, WORDS)
    reader.until(events, WORDS)
    worker.complete(claim, result={"text": WORDS[:5]})
    [error] = events
    assert (error.type, error.code, error.sequence_number) == ("error", "text_changed", TEXT + len(WORDS))
    assert stock.client.responses.retrieve(reader.response_id).output_text == WORDS[:5]


def test_a_stream_whose_response_is_deleted_ends(api: ApiServer, stock: Stock) -> None:
    response = stock.client.responses.create(model="echo", input="Hello", background=True)
    events = stock.client.responses.retrieve(response.id, stream=True)
    assert [next(events).type for _ in range(2)] == ["response.created", "response.queued"]
    stock.client.responses.delete(response.id)
    last = list(events)[-1]
    # Both may fall between two looks.
    assert last.type == "response.failed" or (last.type, last.code) == ("error", "not_found")


def test_what_a_running_job_has_is_deleted_once_its_worker_has_stopped(
    api: ApiServer, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelled_job, "_ENDS_WITHIN_S", 0.2)
    reader, worker = submitted(api, stock)
    claim = worker.claim("second")
    once = stock.client.with_options(max_retries=0)
    error = stock.error(openai.ConflictError, lambda: once.responses.delete(reader.response_id))
    assert (error.code, error.param) == ("still_cancelling", "response_id")
    assert stock.client.responses.retrieve(reader.response_id).status == "in_progress"
    worker.lose(claim)
    stock.client.responses.delete(reader.response_id)
    stock.error(openai.NotFoundError, lambda: stock.client.responses.retrieve(reader.response_id))


def test_a_response_that_a_client_waits_for_is_left_with_it_and_one_in_the_background_is_not(
    api: ApiServer, stock: Stock
) -> None:
    for background in (False, True):
        stream = stock.client.responses.create(model="echo", input="Hello", background=background, stream=True)
        response = next(stream).response
        assert response.background is background
        stream.close()
        job_id = response.id.replace("resp_", "job-")
        if not background:
            until_abandoned(api, job_id)
            stock.client.responses.retrieve(response.id)  # the client comes back
        assert not api.services.jobs.abandoned([job_id])


def test_a_large_response_is_read_on_threads_of_lists_and_its_events_are_made_on_threads(
    api: ApiServer, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    instructions = "Be brief. 漢字 " * 20_000
    response_of, run = response_stream.response_of, api.services.list_threads.run
    on_loop: list[bool] = []
    of_lists: list[bool] = []

    def made(*its: Any) -> Any:
        on_loop.append(asyncio._get_running_loop() is not None)
        return response_of(*its)

    async def counted(*its: Any, **more: Any) -> Any:
        of_lists.append(True)
        return await run(*its, **more)

    monkeypatch.setattr(response_stream, "response_of", made)
    monkeypatch.setattr(api.services.list_threads, "run", counted)
    create: Any = stock.client.responses.create
    events = create(model="echo", input="Hello", instructions=instructions, background=True, stream=True)
    response_id = next(events).response.id
    worker = HandWorker(api, response_id.replace("resp_", "job-"))
    worker.complete(worker.claim("first"))
    worker.complete(worker.claim("second"), result={"text": WORDS})
    *_, last = events
    assert (last.response.output_text, last.response.instructions) == (WORDS, instructions)
    assert len(on_loop) == 4
    assert not any(on_loop)
    assert len(of_lists) == 2
    assert stock.client.responses.retrieve(response_id) == last.response
    assert len(list(stock.client.responses.input_items.list(response_id))) == 1
    assert len(of_lists) == 4
