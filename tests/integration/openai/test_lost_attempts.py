"""Jobs whose attempts are lost or fail while the stock client waits. The test is their worker."""

from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from omni_jobs.errors import InvalidRequest, ModelError, OmniJobsError
from omni_jobs.jobs import Failure
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer
from tests.integration.hand_worker import HandWorker
from tests.integration.openai.stock import LATE_S, Stock, stock_client, until

TEXT = "It was 漢字 and 😀 that"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


@pytest.fixture
def stock(api: ApiServer) -> Iterator[Stock]:
    with stock_client(f"http://{api.host}:{api.port}") as client:
        yield client


def begun(api: ApiServer, stock: Stock) -> tuple[Iterator[Any], HandWorker]:
    """A stream, and the worker of its job, whose first stage is done."""
    stream = iter(stock.chat(model="echo", stream=True))
    worker = HandWorker(api, next(stream).id.replace("chatcmpl-", "job-"))
    worker.complete(worker.claim("first"))
    return stream, worker


def text_until(stream: Iterator[Any], ending: str) -> str:
    text = ""
    while not text.endswith(ending):
        text += next(stream).choices[0].delta.content or ""
    return text


def test_a_stream_goes_on_where_the_next_attempt_writes_the_same(api: ApiServer, stock: Stock) -> None:
    stream, worker = begun(api, stock)
    claim = worker.claim("second")
    worker.write(claim, 0, TEXT)
    assert text_until(stream, "that") == TEXT
    worker.lose(claim)
    again = worker.claim("second")
    worker.write(again, 0, TEXT[:5])
    worker.write(again, 5, TEXT[5:] + " shone", done=2)
    assert text_until(stream, "shone") == " shone"
    worker.complete(again, result={"text": f"{TEXT} shone."}, finish_reason="length")
    last = list(stream)
    assert [chunk.choices[0].delta.content for chunk in last] == [".", None]
    assert last[-1].choices[0].finish_reason == "length"


def test_a_stream_ends_where_the_next_attempt_writes_another_text(api: ApiServer, stock: Stock) -> None:
    stream, worker = begun(api, stock)
    claim = worker.claim("second")
    worker.write(claim, 0, TEXT)
    assert text_until(stream, "that") == TEXT
    worker.lose(claim)
    worker.write(worker.claim("second"), 0, "It was dark")
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "text_changed"
    assert caught.value.body["job_id"] == worker.job_id  # type: ignore[index]
    assert api.http.get(f"/v1/jobs/{worker.job_id}").json()["status"] == "in_progress"


def test_a_whole_text_that_is_shorter_than_what_was_told_is_another_one(api: ApiServer, stock: Stock) -> None:
    stream, worker = begun(api, stock)
    claim = worker.claim("second")
    worker.write(claim, 0, TEXT)
    assert text_until(stream, "that") == TEXT
    worker.complete(claim, result={"text": TEXT[:5]})
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "text_changed"


def test_a_text_is_told_to_its_end_while_a_later_stage_runs(api: ApiServer, stock: Stock) -> None:
    stream = iter(stock.chat(stream=True, modalities=["text", "audio"]))
    worker = HandWorker(api, next(stream).id.replace("chatcmpl-", "job-"), "echo_media")
    answer = worker.claim("answer")
    sound = worker.claim("sound")
    worker.write(answer, 0, TEXT)
    worker.complete(answer, result={"text": f"{TEXT} shone."})
    assert text_until(stream, "shone.") == f"{TEXT} shone."
    worker.complete(sound, artifacts=[worker.artifact(sound)])
    last = [chunk.choices[0] for chunk in stream]
    *sounds, end = [choice.delta.audio for choice in last if choice.delta.audio is not None]
    assert b"".join(b64decode(sound.data) for sound in sounds) == b"RIFF"
    assert end.expires_at
    assert [choice.finish_reason for choice in last] == [None] * (len(last) - 1) + ["stop"]


@pytest.mark.parametrize(
    ("failure", "status", "code", "param"),
    [
        (ModelError("it broke"), 500, "model_error", None),
        (InvalidRequest("too strange", field="messages.0"), 400, "invalid_request", "messages.0"),
    ],
)
def test_a_failed_job_is_an_error_that_is_not_tried_again(
    api: ApiServer, stock: Stock, failure: OmniJobsError, status: int, code: str, param: str | None
) -> None:
    stream = iter(stock.chat(model="echo", stream=True, extra_headers={"Idempotency-Key": "streamed"}))
    worker = HandWorker(api, next(stream).id.replace("chatcmpl-", "job-"))
    claim = worker.claim("first")
    worker.jobs.report([Failure(claim.stage_run_id, claim.attempt, "w-first", failure)])
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert str(caught.value) == (failure.message if param is None else f"{param}: {failure.message}")

    kind = openai.InternalServerError if status == 500 else openai.BadRequestError
    again = {"Idempotency-Key": "streamed"}
    error = stock.error(kind, lambda: stock.chat(model="echo", stream=False, extra_headers=again))
    assert (error.status_code, error.code) == (status, code)


def test_a_failed_response_names_the_client_s_field(api: ApiServer, stock: Stock) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            stock.error, openai.BadRequestError, lambda: stock.client.responses.create(model="echo", input="Hello")
        )
        until(lambda: api.http.get("/v1/jobs").json()["jobs"])
        worker = HandWorker(api, api.http.get("/v1/jobs").json()["jobs"][0]["id"])
        claim = worker.claim("first")
        error = InvalidRequest("too strange", field="messages.0.content")
        worker.jobs.report([Failure(claim.stage_run_id, claim.attempt, "w-first", error)])
        assert asked.result(LATE_S).param == "input"
