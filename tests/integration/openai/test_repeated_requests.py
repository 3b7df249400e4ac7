"""A stock client that sends a request again, without a key, gets the job of its first try."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from omni_jobs.http.tenant_threads import TenantThreads
from tests.integration.api_server import ApiServer, serve
from tests.integration.openai.stock import Stock, stock_client, until

WAITS = {"x-stainless-read-timeout": "600"}  # it says that it waits for longer, so that it breaks off by itself


@pytest.fixture
def replica(echo_media: ApiServer) -> Iterator[ApiServer]:
    with serve(echo_media.services.settings) as api:
        yield api


def jobs_of(api: ApiServer, order: str) -> list[str]:
    jobs = api.http.get("/v1/jobs", params={"limit": 20}).json()["jobs"]
    return [job["id"] for job in jobs if job["metadata"] == {"order": order}]


def first_tries(api: ApiServer) -> int:
    with api.services.db.begin() as tx:
        return int(tx.exec_driver_sql("SELECT count(*) FROM first_tries").scalar_one())


def again(number: int) -> dict[str, Any]:
    return {"extra_headers": {"x-stainless-retry-count": str(number)}}


@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_breaks_off_comes_again_for_the_same_jobs(stock: Stock, echo_media: ApiServer, n: int) -> None:
    client = stock.client.with_options(timeout=0.7, max_retries=10)
    completion = client.chat.completions.create(
        model="echo_media",
        messages=[{"role": "user", "content": "one two"}],
        n=n,
        metadata={"order": f"slow-{n}"},
        extra_body={"stages": {"answer": {"delay_s": 1.5}}},
        extra_headers=WAITS,
    )
    assert [choice.message.content for choice in completion.choices] == ["one two"] * n
    assert len(stock.tries) > 1
    assert len(jobs_of(echo_media, f"slow-{n}")) == n


def test_the_first_try_is_known_on_another_server(stock: Stock, echo_media: ApiServer, replica: ApiServer) -> None:
    more = {"metadata": {"order": "replica"}, "extra_body": {"stages": {"answer": {"delay_s": 1.0}}}}
    with pytest.raises(openai.APITimeoutError):
        stock.client.with_options(timeout=0.5, max_retries=0).chat.completions.create(
            model="echo_media", messages=[{"role": "user", "content": "Once"}], **more, extra_headers=WAITS
        )
    with stock_client(f"http://{replica.host}:{replica.port}") as other:
        assert other.chat("Once", **more, **again(1)).choices[0].message.content == "Once"
    assert len(jobs_of(echo_media, "replica")) == 1


def test_a_request_that_was_answered_is_no_first_try_of_another(stock: Stock, echo_media: ApiServer) -> None:
    before = first_tries(echo_media)
    first = stock.chat("Twice", metadata={"order": "twice"}).id
    until(lambda: first_tries(echo_media) <= before)  # the note that it was answered is written behind the answer
    assert stock.chat("Twice", metadata={"order": "twice"}, **again(1)).id != first
    assert len(jobs_of(echo_media, "twice")) == 2


def test_first_tries_are_jobs_of_their_own(stock: Stock, echo_media: ApiServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(stock.chat, "Same", metadata={"order": "same"}) for _ in range(4)]
        assert len({each.result().id for each in asked}) == 4
    assert len(jobs_of(echo_media, "same")) == 4


def test_a_broken_stream_may_be_asked_for_whole(stock: Stock, echo_media: ApiServer) -> None:
    more = {"metadata": {"order": "stream"}, "extra_body": {"stages": {"answer": {"delay_s": 1.0}}}}
    stream = stock.chat("one two three", stream=True, **more)
    first = next(stream)
    stream.close()
    assert stock.chat("one two three", **more, **again(1)).id == first.id
    assert len(jobs_of(echo_media, "stream")) == 1


def test_a_request_with_a_key_or_that_is_refused_leaves_nothing_behind(stock: Stock, echo_media: ApiServer) -> None:
    before = first_tries(echo_media)
    stock.chat("Keyed", extra_headers={"Idempotency-Key": "keyed"})
    with pytest.raises(openai.BadRequestError):
        stock.chat("Keyed", temperature=9)
    assert first_tries(echo_media) <= before


def test_a_key_belongs_to_one_route(stock: Stock) -> None:
    asked: dict[str, Any] = {"model": "echo_media", "prompt": "Once", "extra_headers": {"Idempotency-Key": "of-one"}}
    stock.client.images.generate(**asked)
    error = stock.error(openai.BadRequestError, lambda: stock.client.videos.create(**asked))
    assert error.code == "idempotency_key_reused"


@pytest.fixture
def busy(echo_media: ApiServer) -> Iterator[ApiServer]:
    """A server on which as many requests of each tenant wait for threads that read artifacts as may."""
    with serve(echo_media.services.settings.model_copy(update={"auth": "proxy", "tenant_header": "X-Tenant"})) as api:
        api.services.artifact_threads = TenantThreads(1, 1, most_waiting=0)
        yield api


def test_a_stream_that_has_begun_is_told_to_its_end(busy: ApiServer) -> None:
    of_tenant = {"extra_headers": {"X-Tenant": "a"}}
    with stock_client(f"http://{busy.host}:{busy.port}") as stock:
        chunks = [*stock.chat("Hello", stream=True, **of_tenant)]
        assert chunks[-1].choices[0].finish_reason == "stop"
        events = [*stock.client.images.generate(model="echo_media", prompt="Hello", stream=True, **of_tenant)]  # type: ignore[call-overload]
        assert events[-1].type == "image_generation.completed"
        with pytest.raises(openai.InternalServerError) as caught:
            stock.client.with_options(max_retries=0).images.generate(model="echo_media", prompt="Hello", **of_tenant)  # type: ignore[call-overload]
        assert caught.value.code == "server_busy"


def test_a_stopping_server_sends_its_clients_to_another(echo_media: ApiServer, replica: ApiServer) -> None:
    with stock_client(f"http://{replica.host}:{replica.port}") as stock, ThreadPoolExecutor(1) as pool:
        more = {"metadata": {"order": "stop"}, "extra_body": {"stages": {"answer": {"delay_s": 600}}}}
        waiting = pool.submit(
            stock.client.with_options(max_retries=0).chat.completions.create,
            model="echo_media",
            messages=[{"role": "user", "content": "a b"}],
            **more,
        )
        until(lambda: jobs_of(echo_media, "stop"))
        replica.services.watch.release()
        with pytest.raises(openai.InternalServerError) as caught:
            waiting.result(30)
    assert (caught.value.status_code, caught.value.code) == (503, "server_busy")
    assert caught.value.response.headers["x-should-retry"] == "true"
    echo_media.http.post(f"/v1/jobs/{jobs_of(echo_media, 'stop')[0]}/cancel")
