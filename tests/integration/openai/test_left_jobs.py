"""Clients that break the connection before their answer, or before their stream's end."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer
from tests.integration.job_steps import pass_time
from tests.integration.openai.stock import LATE_S, Stock, stock_client, until


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
