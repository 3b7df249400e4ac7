"""What requests hold of the server while they wait for jobs that nobody runs, and what they leave behind."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import httpx2
import openai
import pytest

import omni_jobs.requests.submission
from omni_jobs.errors import DatabaseUnavailable, OmniJobsError
from omni_jobs.jobs import NewJob, SubmitResult
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, parsed_error, serve
from tests.integration.openai.stock import LATE_S, Stock, stock_client, until

MIB = 1 << 20
CHAT: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
WAITS = {"x-stainless-read-timeout": "600"}  # it says that it waits for longer, so that it breaks off by itself


@pytest.fixture
def one_place(sqlite_settings: Settings) -> Iterator[ApiServer]:
    with serve(sqlite_settings.model_copy(update={"max_waits": 1})) as api:
        yield api


def stock_of(api: ApiServer) -> Any:
    return stock_client(f"http://{api.host}:{api.port}")


def job_ids(api: ApiServer) -> list[str]:
    return [job["id"] for job in api.http.get("/v1/jobs?brief=true").json()["jobs"]]


def first_tries(api: ApiServer) -> int:
    with api.services.db.begin() as tx:
        return int(tx.exec_driver_sql("SELECT count(*) FROM first_tries").scalar_one())


def is_free(api: ApiServer) -> bool:
    return not api.services.watch._places


def refused(api: ApiServer) -> str:
    """The code of the error with which a chat completion is refused; nothing is stored of it."""
    before = job_ids(api)
    answer = api.http.post("/v1/chat/completions", json=CHAT)
    assert job_ids(api) == before
    return str(answer.json()["error"]["code"])


def test_a_waiting_request_holds_neither_its_body_nor_more_than_its_place(sqlite_settings: Settings) -> None:
    bounds = {"max_body_bytes": MIB, "max_held_body_bytes": 5 * MIB, "max_waits": 7}
    with serve(sqlite_settings.model_copy(update=bounds)) as api, stock_of(api) as stock, ExitStack() as open_streams:
        once = stock.client.with_options(max_retries=0)
        for _ in range(7):
            stream = open_streams.enter_context(stock.chat("word " * 200_000, model="echo", stream=True))
            assert next(stream).choices[0].delta.role == "assistant"
        error = stock.error(openai.InternalServerError, lambda: once.chat.completions.create(**CHAT))
        assert (error.status_code, error.code) == (503, "server_busy")
        assert len(job_ids(api)) == 7


# Its place


def test_a_request_has_its_place_from_its_head_to_its_answer(one_place: ApiServer) -> None:
    body = json.dumps(CHAT).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    )
    with closing(socket.create_connection((one_place.host, one_place.port))) as slow, slow.makefile("rb") as answer:
        slow.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body[:9])
        until(lambda: not is_free(one_place))
        assert refused(one_place) == "server_busy"
        slow.sendall(body[9:])
        until(lambda: job_ids(one_place))
        [job_id] = job_ids(one_place)
        assert refused(one_place) == "server_busy"
        one_place.services.jobs.cancel(job_id)
        status, _, error = parsed_error(answer.read())
    assert (status, error["code"]) == (409, "job_cancelled")
    until(lambda: is_free(one_place))


WAYS: dict[str, Callable[[ApiServer, Stock], object]] = {
    "refused": lambda api, stock: api.http.post("/v1/chat/completions", json={**CHAT, "model": "none"}),
    "not read": lambda api, stock: api.http.post("/v1/chat/completions", content=b"{"),
    "refused by its parameter": lambda api, stock: api.http.post("/v1/chat/completions", json={**CHAT, "n": 0}),
    "timed out": lambda api, stock: api.http.post(
        "/v1/chat/completions", json=CHAT, headers={"x-stainless-read-timeout": "0.1"}
    ),
    "streamed, and closed": lambda api, stock: stock.chat(model="echo", stream=True).close(),
    "a response in the background": lambda api, stock: stock.client.responses.create(
        model="echo", input="Hello", background=True
    ),
    "events, and closed": lambda api, stock: read_first_event(api),
    "Prefer: wait": lambda api, stock: api.http.post("/v1/jobs", json=CHAT, headers={"Prefer": "wait=1"}),
}


def read_first_event(api: ApiServer) -> None:
    path = f"/v1/jobs/{api.http.post('/v1/jobs', json=CHAT).json()['id']}/events"
    with api.http.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        assert refused(api) == "server_busy"


def test_a_place_is_free_again_however_its_request_ends(one_place: ApiServer) -> None:
    with stock_of(one_place) as stock:
        for way, send in WAYS.items():
            send(one_place, stock)
            until(lambda: is_free(one_place))
            assert way
    with pytest.raises(httpx2.ReadTimeout):
        one_place.http.post("/v1/chat/completions", json=CHAT, timeout=0.5)  # the client leaves
    until(lambda: is_free(one_place))


def test_every_wait_counts_for_the_bound(one_place: ApiServer) -> None:
    def wait() -> httpx2.Response:
        return httpx2.post(
            f"http://{one_place.host}:{one_place.port}/v1/jobs", json=CHAT, headers={"Prefer": "wait=60"}, timeout=60
        )

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        until(lambda: not is_free(one_place))
        assert refused(one_place) == "server_busy"
        answer = one_place.http.post("/v1/jobs", json=CHAT, headers={"Prefer": "wait=60"})
        assert (answer.status_code, "Preference-Applied" in answer.headers) == (202, False)
        for job_id in job_ids(one_place):
            one_place.services.jobs.cancel(job_id)
        assert waiting.result(LATE_S).status_code == 200


# What it leaves behind


def test_a_flood_that_the_backlog_refuses_writes_nothing(sqlite_settings: Settings) -> None:
    with serve(sqlite_settings.model_copy(update={"max_queued_jobs": 1})) as api, stock_of(api) as stock:
        with pytest.raises(openai.APITimeoutError):
            stock.client.with_options(timeout=0.5, max_retries=0).chat.completions.create(**CHAT, extra_headers=WAITS)
        [job_id] = job_ids(api)
        until(lambda: api.services.jobs.abandoned([job_id]))
        before = first_tries(api)
        for number in range(3):
            headers = {"x-stainless-retry-count": str(number)}
            answer = api.http.post("/v1/chat/completions", json={**CHAT, "n": 2}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_jobs")
        assert (job_ids(api), first_tries(api)) == ([job_id], before)
        with ThreadPoolExecutor(1) as pool:  # what is repeated has its job, and needs no room
            headers = {"x-stainless-retry-count": "1", **WAITS}
            again = pool.submit(stock.chat, model="echo", extra_headers=headers, timeout=LATE_S)
            until(lambda: not api.services.jobs.abandoned([job_id]))
            api.services.jobs.cancel(job_id)
            with pytest.raises(openai.ConflictError):
                again.result(LATE_S)
        assert job_ids(api) == [job_id]


@pytest.mark.parametrize("headers", [{}, {"x-stainless-retry-count": "0"}, {"Idempotency-Key": "mine"}])
def test_a_job_of_which_its_client_does_not_know_is_left(sqlite_settings: Settings, headers: dict[str, str]) -> None:
    with serve(sqlite_settings) as api:
        commits = api.services.intake._commits
        submit_all = commits._submit_all

        def lose_the_answer(jobs: Sequence[NewJob]) -> Sequence[SubmitResult | OmniJobsError]:
            submit_all(jobs)
            raise DatabaseUnavailable

        commits._submit_all = lose_the_answer
        answer = api.http.post("/v1/chat/completions", json={**CHAT, "n": 2}, headers=headers)
        commits._submit_all = submit_all
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
        jobs = job_ids(api)
        assert len(jobs) == 2
        if "Idempotency-Key" not in headers:
            until(lambda: sorted(api.services.jobs.abandoned(jobs)) == sorted(jobs))
        if not headers:
            return
        repeated = {**headers, "x-stainless-retry-count": "1"}
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(api.http.post, "/v1/chat/completions", json={**CHAT, "n": 2}, headers=repeated)
            until(lambda: not api.services.jobs.abandoned(jobs) and not is_free(api))
            for job_id in jobs:
                api.services.jobs.cancel(job_id)
            assert again.result(LATE_S).status_code == 409
        assert job_ids(api) == jobs


def test_the_digest_of_a_large_request_is_made_once_and_beside_the_event_loop(
    sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    canonical = omni_jobs.requests.submission.canonical

    def noted(value: Any) -> Any:
        if isinstance(value, dict) and "messages" in value:
            made.append(threading.current_thread().name)
        return canonical(value)

    monkeypatch.setattr(omni_jobs.requests.submission, "canonical", noted)
    with serve(sqlite_settings) as api:
        large = [{"role": "user", "content": "word " * 20_000}]
        headers = {"x-stainless-retry-count": "0", "x-stainless-read-timeout": "0.5"}
        answer = api.http.post("/v1/chat/completions", json={**CHAT, "messages": large, "n": 3}, headers=headers)
        assert answer.json()["error"]["code"] == "still_running"
        assert len(job_ids(api)) == 3
    [thread] = made
    assert thread != "api"
