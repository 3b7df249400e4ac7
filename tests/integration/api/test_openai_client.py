"""The stock ``openai`` client reads our errors, and repeats a request only where that can help."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
UNKNOWN = "/jobs/job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


class Stock:
    """A stock client of one server, with the retry counts of the requests that it sent. ``client`` is to be closed."""

    def __init__(self, api: ApiServer) -> None:
        self.tries: list[str] = []
        http = openai.DefaultHttpxClient(trust_env=False, event_hooks={"request": [self._count]})
        self.client = openai.OpenAI(base_url=f"http://{api.host}:{api.port}/v1", api_key="none", http_client=http)

    def _count(self, request: Any) -> None:
        self.tries.append(request.headers["x-stainless-retry-count"])

    def error(self, method: str, path: str, kind: type[openai.APIStatusError], **options: Any) -> openai.APIStatusError:
        """The error of a request that is refused."""
        call = getattr(self.client, method)
        with pytest.raises(openai.APIStatusError) as caught:
            call(path, cast_to=object, **options)
        assert type(caught.value) is kind
        return caught.value


@pytest.fixture
def stock(settings: Settings) -> Iterator[Stock]:
    with serve(settings) as api:
        stock = Stock(api)
        with stock.client:
            yield stock


def parts_of(error: openai.APIStatusError) -> tuple[str | None, str | None, str | None]:
    return error.code, error.type, error.param


def test_an_unknown_job(stock: Stock) -> None:
    error = stock.error("get", UNKNOWN, openai.NotFoundError, options={"headers": {"X-Request-Id": "mine"}})
    assert parts_of(error) == ("not_found", "not_found_error", "job_id")
    assert "there is no job" in error.message
    assert error.request_id == "mine"
    assert stock.tries == ["0"]


def test_an_invalid_request(stock: Stock) -> None:
    error = stock.error("post", "/jobs", openai.UnprocessableEntityError, body={**ECHO, "temperature": 9})
    assert parts_of(error) == ("invalid_request", "invalid_request_error", "temperature")
    assert str(error.request_id).startswith("req-")
    assert stock.tries == ["0"]


def test_a_key_that_was_used_before(stock: Stock) -> None:
    headers = {"headers": {"Idempotency-Key": "k"}}
    stock.client.post("/jobs", cast_to=object, body=ECHO, options=headers)
    error = stock.error("post", "/jobs", openai.UnprocessableEntityError, body={**ECHO, "seed": 1}, options=headers)
    assert parts_of(error) == ("idempotency_key_reused", "invalid_request_error", "Idempotency-Key")
    assert stock.tries == ["0", "0"]


def test_a_conflict_is_not_tried_again(stock: Stock) -> None:
    """The client would, because of the status, if the answer did not say otherwise."""
    job: Any = stock.client.post("/jobs", cast_to=object, body=ECHO)
    error = stock.error("delete", f"/jobs/{job['id']}", openai.ConflictError)
    assert parts_of(error) == ("conflict", "conflict_error", "job_id")
    assert stock.tries == ["0", "0"]


def test_a_missing_model_is_not_tried_again(stock: Stock) -> None:
    error = stock.error("post", "/jobs", openai.InternalServerError, body={**ECHO, "model": "qwen2_5_omni"})
    assert (error.status_code, *parts_of(error)) == (503, "model_missing", "server_error", "model")
    assert stock.tries == ["0"]


def test_a_database_that_is_away_is_tried_again(settings: Settings) -> None:
    with serve(settings.model_copy(update={"database_url": "sqlite:////dev/null/none"})) as api:
        stock = Stock(api)
        with stock.client:
            error = stock.error("get", UNKNOWN, openai.InternalServerError)
    assert (error.status_code, *parts_of(error)) == (503, "database_unavailable", "server_error", None)
    assert error.request_id
    assert stock.tries == ["0", "1", "2"]
