"""Clients that break the connection before their answer, or before their stream's end."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from fastapi import FastAPI
from starlette.types import Message, Send

from omni_jobs.jobs import JobFilter
from omni_jobs.settings import Settings
from omni_jobs.web.app import create_app
from tests.integration.api_server import ApiServer
from tests.integration.job_steps import pass_time
from tests.integration.openai.stock import LATE_S, Stock, stock_client, until

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


@pytest.fixture
def stock(api: ApiServer) -> Iterator[Stock]:
    with stock_client(f"http://{api.host}:{api.port}") as client:
        yield client


def job_ids(api: ApiServer) -> list[str]:
    return [job["id"] for job in api.http.get("/v1/jobs").json()["jobs"]]


def test_a_stream_that_is_closed_leaves_its_jobs(api: ApiServer, stock: Stock) -> None:
    stream = stock.chat(model="echo", stream=True, n=2)
    next(stream)
    stream.close()
    jobs = job_ids(api)
    assert len(jobs) == 2
    until(lambda: len(api.services.jobs.abandoned(jobs)) == 2)
    assert api.http.get(f"/v1/jobs/{jobs[0]}").json()["status"] == "queued"
    pass_time(api.services.db, 61)
    api.services.jobs.rescue()
    assert [api.http.get(f"/v1/jobs/{job_id}").json()["status"] for job_id in jobs] == ["queued", "cancelled"]


def test_a_client_that_gives_up_leaves_its_job_until_it_comes_again(api: ApiServer, stock: Stock) -> None:
    headers = {"Idempotency-Key": "again", "x-stainless-read-timeout": "600"}  # it says that it waits for longer
    with pytest.raises(openai.APITimeoutError):
        stock.client.with_options(timeout=0.5, max_retries=0).chat.completions.create(
            model="echo", messages=[{"role": "user", "content": "Hello"}], extra_headers=headers
        )
    until(lambda: job_ids(api))
    [job_id] = job_ids(api)
    until(lambda: api.services.jobs.abandoned([job_id]))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            stock.error, openai.ConflictError, lambda: stock.chat(model="echo", extra_headers=headers)
        )
        until(lambda: not api.services.jobs.abandoned([job_id]))
        api.services.jobs.cancel(job_id)
        assert waiting.result(LATE_S).code == "job_cancelled"


# Requests that end before their answer has begun


async def ask(app: FastAPI, path: str, body: dict[str, Any], send: Send) -> None:
    """Send a request, whose client stays connected as far as the application knows."""
    whole = json.dumps({"model": "echo", **body}).encode()
    coming: list[Message] = [{"type": "http.request", "body": whole, "more_body": False}]

    async def receive() -> Message:
        return coming.pop() if coming else await asyncio.Future()

    heads = {"host": "localhost", "content-type": "application/json", "content-length": str(len(whole))}
    headers = [(name.encode(), value.encode()) for name, value in heads.items()]
    url = {"scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    await app({"type": "http", "http_version": "1.1", "method": "POST", **url, "headers": headers}, receive, send)


async def unsendable(message: Message) -> None:
    raise OSError("the client is gone")


async def unread(message: Message) -> None:
    """Take what is sent, as a socket does."""


def test_an_answer_that_is_never_begun_leaves_its_jobs_but_those_in_the_background(settings: Settings) -> None:
    async def run() -> None:
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            jobs = app.state.services.jobs
            with pytest.raises(RuntimeError, match="already started"):
                await ask(app, "/v1/responses", {"input": "Hello", "background": True, "stream": True}, unsendable)
            [goes_on] = jobs.list(JobFilter(), limit=9).jobs
            with pytest.raises(
                RuntimeError, match="already started"
            ) as kept:  # with all that its traceback holds, such as the stream
                await ask(app, "/v1/chat/completions", {**ASKED, "stream": True, "n": 2}, unsendable)
            ids = [job.id for job in jobs.list(JobFilter(), limit=9).jobs]
            await asyncio.to_thread(until, lambda: jobs.abandoned(ids))
            assert sorted(jobs.abandoned(ids)) == sorted(set(ids) - {goes_on.id})
            assert len(ids) == 3
            assert kept

    asyncio.run(run())


def test_a_wait_that_is_cancelled_leaves_its_job(settings: Settings) -> None:
    async def run() -> None:
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            services = app.state.services
            waiting = asyncio.create_task(ask(app, "/v1/chat/completions", ASKED, unread))
            await asyncio.to_thread(until, lambda: services.watch._watchers)
            waiting.cancel()
            await asyncio.wait({waiting})
            [job] = services.jobs.list(JobFilter(), limit=9).jobs
            await asyncio.to_thread(until, lambda: services.jobs.abandoned([job.id]))

    asyncio.run(run())
