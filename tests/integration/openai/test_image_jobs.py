"""Pictures whose attempts are lost or fail, and where they are fetched from. The test is the jobs' worker."""

import asyncio
import io
import json
import socket
import tracemalloc
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from PIL import Image

from omni_jobs.errors import InvalidRequest
from omni_jobs.jobs import Claim, Failure, ProgressReport, StoredArtifact
from omni_jobs.servers import Server
from omni_jobs.settings import Settings
from omni_jobs.storage import artifact_key
from tests.integration.api_server import ApiServer, serve
from tests.integration.echo_stack import EchoStack
from tests.integration.hand_worker import HandWorker, until_watched
from tests.integration.openai.stock import Stock, stock_client
from tests.integration.openai.test_left_jobs import until
from tests.oracles import samples
from tests.services.openai_server import OpenAIServer, json_answer
from tests.services.seaweedfs import SeaweedFS

PNG = samples.image(32, 16)
LATE_S = 60.0
ASKED: dict[str, Any] = {"model": "echo_media", "prompt": "a boat", "stream": True}
STREAMED = (
    b"POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Idempotency-Key: large\r\nContent-Length: %d\r\n\r\n%s"
)


@contextmanager
def served(settings: Settings, path: str = "") -> Iterator[tuple[ApiServer, Stock]]:
    with serve(settings) as api, stock_client(f"http://{api.host}:{api.port}{path}") as stock:
        yield api, stock


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


class Drawer(HandWorker):
    """A worker of the stage that draws."""

    def __init__(self, api: ApiServer) -> None:
        [job_id] = [job["id"] for job in api.http.get("/v1/jobs").json()["jobs"]]
        super().__init__(api, job_id, "echo_media")

    def preview(self, claim: Claim, step: int) -> None:
        """Show a preview, which is no picture, but says of which attempt and step it is."""
        until_watched(self.jobs, claim)
        url = f"data:image/jpeg;base64,{claim.attempt}{step:03}"
        self.jobs.report_progress([ProgressReport(claim.stage_run_id, claim.attempt, step, 8, "steps", picture=url)])

    def draw(self, claim: Claim, data: bytes = PNG, *, damaged: bool = False) -> None:
        key = artifact_key(self.job_id, claim.stage, claim.attempt, "image.png")
        ref = self.store.put(key, [data])
        if damaged:
            self.store.put(key, [data[:-1], b"!"])
        self.complete(claim, artifacts=[StoredArtifact("image.png", "image/png", ref)])


def begun(api: ApiServer, stock: Stock, **more: Any) -> tuple[Any, Drawer]:
    stream = stock.client.images.generate(**ASKED, **more)
    return stream, Drawer(api)


def test_a_stream_goes_on_with_the_next_attempt(settings: Settings) -> None:
    with served(settings) as (api, stock):
        stream, worker = begun(api, stock, partial_images=3)
        claim = worker.claim("picture")
        worker.preview(claim, 1)
        worker.preview(claim, 2)
        assert next(stream).b64_json == "1002"
        worker.lose(claim)
        claim = worker.claim("picture")
        for step in (2, 4):
            worker.preview(claim, step)
        event = next(stream)
        assert (event.b64_json, event.partial_image_index) == ("2004", 1)
        worker.draw(claim)
        [last] = list(stream)
        assert (last.type, b64decode(last.b64_json)) == ("image_generation.completed", PNG)


def test_a_stream_that_is_closed_leaves_its_jobs(settings: Settings) -> None:
    with served(settings) as (api, stock):
        stream = stock.client.images.generate(model="echo_media", prompt="a boat", n=2, stream=True)
        stream.close()
        jobs = [job["id"] for job in api.http.get("/v1/jobs").json()["jobs"]]
        assert len(jobs) == 2
        until(lambda: len(api.services.jobs.abandoned(jobs)) == 2)


def test_pictures_that_nobody_reads_are_not_in_memory(settings: Settings) -> None:
    large, count, body = bytes(32 << 20), 4, json.dumps(ASKED).encode()
    with served(settings) as (api, stock), ExitStack() as clients:
        stream, worker = begun(api, stock, extra_headers={"Idempotency-Key": "large"})
        worker.draw(worker.claim("picture"), large)
        tracemalloc.start()
        clients.callback(tracemalloc.stop)
        for _ in range(count):
            client = clients.enter_context(socket.create_connection((api.host, api.port), timeout=LATE_S))
            client.sendall(STREAMED % (len(body), body))
            told = b""
            while b"AAAAAAAA" not in told:
                more = client.recv(1024)
                assert more, told
                told += more
        assert tracemalloc.get_traced_memory()[1] < 2 * len(large)  # of five: it has some pieces of each
        stream.close()


def test_a_damaged_picture_is_an_error(settings: Settings) -> None:
    with served(settings) as (api, stock):
        stream, worker = begun(api, stock)
        worker.draw(worker.claim("picture"), PNG, damaged=True)
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "object_corrupt"


def test_a_stream_breaks_off_within_a_large_damaged_picture(settings: Settings) -> None:
    with served(settings) as (api, stock):
        stream, worker = begun(api, stock)
        worker.draw(worker.claim("picture"), bytes(4 << 20), damaged=True)
        with pytest.raises(openai.APIConnectionError):
            list(stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_job_names_the_client_s_field(settings: Settings, stream: bool) -> None:
    with served(settings) as (api, stock), ThreadPoolExecutor(1) as pool:

        def ask() -> Any:
            with pytest.raises(openai.APIError) as caught:
                list(stock.client.images.generate(model="echo_media", prompt="a boat", stream=stream))
            return caught.value

        asked = pool.submit(ask)
        worker = until_it_has(api)
        claim = worker.claim("picture")
        error = InvalidRequest("too strange", field="messages.0.content")
        worker.jobs.report([Failure(claim.stage_run_id, claim.attempt, "w-picture", error)])
        caught = asked.result(LATE_S)
        assert (caught.code, caught.param) == ("invalid_request", "prompt")
        assert isinstance(caught, openai.BadRequestError) is not stream


def until_it_has(api: ApiServer) -> Drawer:
    until(lambda: api.http.get("/v1/jobs").json()["jobs"])
    return Drawer(api)


def drawn(api: ApiServer, ask: Callable[[], Any]) -> Any:
    """The answer to a request, whose job is done by hand."""
    with ThreadPoolExecutor(1) as pool:
        asked: Future[Any] = pool.submit(ask)
        worker = until_it_has(api)
        worker.draw(worker.claim("picture"))
        return asked.result(LATE_S)


def test_a_url_stands_below_the_path_of_the_server(settings: Settings) -> None:
    with served(settings.model_copy(update={"root_path": "/jobs-api"}), "/jobs-api") as (api, stock):
        answer = drawn(
            api,
            lambda: stock.client.images.generate(model="echo_media", prompt="a boat", response_format="url"),
        )
        [made] = answer.data
        assert made.url.startswith(f"http://{api.host}:{api.port}/jobs-api/v1/jobs/job-")
        assert httpx2.get(made.url).content == PNG


def test_a_url_is_the_store_s_where_it_gives_one(settings: Settings, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    in_s3 = seaweedfs.settings(tmp_path, "pictures").model_dump(include={"storage_url", "s3_endpoint_url"})
    with served(settings.model_copy(update={**in_s3, "download_url_s": 60})) as (api, stock):
        answer = drawn(
            api,
            lambda: stock.client.images.generate(model="echo_media", prompt="a boat", response_format="url"),
        )
        [made] = answer.data
        assert made.url.startswith(seaweedfs.endpoint_url)
        got = httpx2.get(made.url)
        assert (got.content, got.headers["content-type"]) == (PNG, "image/png")


# A server behind ours draws.

REMOTE = """
name: remote_picture
version: "1"
accepts: [text, image]
stages:
  draw:
    kind: remote
    processor: remote_text
    produces: pixels
    engine: {server: local, model: theirs, endpoint: images}
outputs:
  image: {stage: draw}
"""


@pytest.fixture
def elsewhere() -> Iterator[OpenAIServer]:
    """A server of somebody else's, in a loop of its own."""
    loop = asyncio.new_event_loop()
    server = OpenAIServer()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop.run_forever)
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(LATE_S)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(LATE_S)
            loop.call_soon_threadsafe(loop.stop)
            running.result(LATE_S)
            loop.close()


def test_a_server_behind_ours_draws_and_edits(
    elsewhere: OpenAIServer, sqlite_url: str, valkey_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    webp = io.BytesIO()
    Image.open(io.BytesIO(PNG)).save(webp, "WEBP")
    answer = {"data": [{"b64_json": b64encode(webp.getvalue()).decode()}]}
    usage = {"input_tokens": 5, "output_tokens": 90}
    elsewhere.answers["POST /v1/images/generations"] = [json_answer({**answer, "usage": usage})]
    elsewhere.answers["POST /v1/images/edits"] = [json_answer(answer)]
    servers = {"local": Server(url=elsewhere.url).model_dump(mode="json")}
    monkeypatch.setenv("OMNI_JOBS_SERVERS", json.dumps(servers))
    stack = EchoStack(tmp_path, sqlite_url, valkey_server, pipeline="remote_picture", config=REMOTE)
    try:
        stack.start("draw")
        with served(stack.settings) as (_, stock):
            asked: dict[str, Any] = {"model": "remote_picture", "prompt": "a boat", "size": "32x16"}
            wishes: dict[str, Any] = {"quality": "high", "background": "transparent"}
            drawn = stock.client.images.generate(**asked, **wishes, extra_body={"num_inference_steps": 4, "seed": 3})
            edited = stock.client.images.edit(**asked, image=[("a.png", PNG), ("b.png", PNG)])
            assert (drawn.output_format, b64decode(drawn.data[0].b64_json)) == ("webp", webp.getvalue())
            assert drawn.usage.to_dict() == {
                "input_tokens": 5,
                "input_tokens_details": {"image_tokens": 0, "text_tokens": 5},
                "output_tokens": 90,
                "total_tokens": 95,
            }
            assert edited.usage is None
    finally:
        stack.close()
    first, second = [request for request in elsewhere.requests if request.method == "POST"]
    wanted = {"model": "theirs", "prompt": "a boat", "size": "32x16", "quality": "high", "background": "transparent"}
    assert first.json.items() >= {**wanted, "num_inference_steps": 4, "seed": 3}.items()
    assert second.path == "/v1/images/edits"
    assert second.form["image[]"][2] == PNG
