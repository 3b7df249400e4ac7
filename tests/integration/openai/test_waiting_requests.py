"""What requests hold of the server while they wait for jobs that nobody runs, and what they leave behind."""

import threading
from contextlib import ExitStack
from typing import Any

import openai
import pytest

import omni_jobs.requests.submission
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve
from tests.integration.openai.stock import stock_client

MIB = 1 << 20
CHAT: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
WAITS = {"x-stainless-read-timeout": "600"}  # it says that it waits for longer, so that it breaks off by itself


def stock_of(api: ApiServer) -> Any:
    return stock_client(f"http://{api.host}:{api.port}")


def job_ids(api: ApiServer) -> list[str]:
    return [job["id"] for job in api.http.get("/v1/jobs?brief=true").json()["jobs"]]


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
