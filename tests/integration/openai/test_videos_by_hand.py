"""Videos at a server without workers: lists, every end of a job, and what is refused. The test is their worker."""

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from omni_jobs.api import cancelled_job
from omni_jobs.database.database import Database
from omni_jobs.errors import ModelError
from omni_jobs.jobs import Failure, Retention
from tests.integration.api_server import BEHIND_A_PROXY, ApiServer, checked_error, serve, server_settings
from tests.integration.hand_worker import HandWorker
from tests.integration.job_steps import pass_time
from tests.integration.openai.stock import Stock, stock_client
from tests.oracles import samples

MP4 = b"\0\0\0\x18ftypmp42"
PNG = samples.image(64, 48)


@pytest.fixture(scope="module")
def api(valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    settings = server_settings(tmp_path_factory.mktemp("videos"), valkey_server, **BEHIND_A_PROXY)
    Database(settings.resolved_database_url).migrate()
    with serve(settings) as server:
        server.http.headers["X-Tenant"] = "a"
        yield server


@pytest.fixture(autouse=True)
def _leaves_nothing(api: ApiServer) -> Iterator[None]:
    yield
    jobs = api.services.jobs
    for job in jobs.list(limit=100).jobs:
        jobs.cancel(job.id)
        jobs.delete(job.id)
    with api.services.db.begin() as tx:
        tx.exec_driver_sql("DELETE FROM workers")


@pytest.fixture
def stock(api: ApiServer) -> Iterator[Stock]:
    with stock_client(f"http://{api.host}:{api.port}") as client:
        client.client = client.client.with_options(default_headers={"X-Tenant": "a"})
        yield client


@pytest.fixture
def other(stock: Stock) -> openai.OpenAI:
    """The client of another tenant."""
    return stock.client.with_options(default_headers={"X-Tenant": "b"})


def created(client: openai.OpenAI, prompt: str = "a boat", **more: Any) -> Any:
    return client.videos.create(**{"prompt": prompt, "model": "echo_media", **more})


def worker_of(api: ApiServer, video: Any) -> HandWorker:
    return HandWorker(api, video.id.replace("video_", "job-"), "echo_media")


# Lists.


def test_a_list_goes_on_from_page_to_page(api: ApiServer, stock: Stock, other: openai.OpenAI) -> None:
    ids = []
    for number in range(5):
        ids.append(created(stock.client, f"boat {number}").id)
        created(other)
        body = {"model": "echo_media", "messages": [{"role": "user", "content": "x"}], "modalities": ["text"]}
        assert api.http.post("/v1/jobs", json=body).status_code == 202
    native = api.http.post("/v1/jobs", json={**body, "modalities": ["text", "video"]}).json()["id"]
    ids.append(native.replace("job-", "video_"))

    pages = stock.client.videos.list(limit=2)
    assert (pages.data[0].id, pages.has_more, pages.last_id) == (ids[-1], True, ids[-2])
    assert [video.id for video in pages] == ids[::-1]
    assert [video.id for video in stock.client.videos.list(limit=4, order="asc")] == ids
    assert [video.prompt for video in stock.client.videos.list(order="asc", after=ids[3])] == ["boat 4", "x"]
    last = stock.client.videos.list(after=ids[0])
    assert (last.data, last.has_more, last.last_id) == ([], False, None)
    assert stock.client.videos.list().has_more is False
    assert len(list(other.videos.list(limit=1))) == 5


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"after": "job-1"}, "after"), ({"order": "up"}, "order")],
)
def test_a_list_that_is_asked_wrongly_is_refused(stock: Stock, query: dict[str, Any], param: str) -> None:
    error = stock.error(openai.BadRequestError, lambda: stock.client.videos.list(**query))
    assert error.param == param


# How jobs end.


def test_a_failed_video_says_why(api: ApiServer, stock: Stock) -> None:
    video = created(stock.client)
    worker = worker_of(api, video)
    claim = worker.claim("video")
    error = stock.error(openai.ConflictError, lambda: stock.client.videos.download_content(video.id))
    assert error.param == "video_id"
    worker.jobs.report([Failure(claim.stage_run_id, claim.attempt, "w-video", ModelError("it broke"))])
    failed = stock.client.videos.poll(video.id)
    assert (failed.status, failed.completed_at, failed.progress) == ("failed", None, 0)
    assert (failed.error.code, failed.error.message) == ("model_error", "it broke")
    error = stock.error(openai.ConflictError, lambda: stock.client.videos.download_content(video.id))
    assert "it broke" in error.message
    assert stock.client.videos.delete(video.id).deleted


def test_a_cancelled_and_an_expired_video_have_failed(api: ApiServer, stock: Stock) -> None:
    cancelled, expired = created(stock.client), created(stock.client)
    api.services.jobs.cancel(cancelled.id.replace("video_", "job-"))
    with api.services.db.begin() as tx:
        tx.exec_driver_sql("UPDATE jobs SET deadline = 1 WHERE id = ?", (expired.id.replace("video_", "job-"),))
    api.services.jobs.rescue()
    codes = [stock.client.videos.poll(video.id).error.code for video in (cancelled, expired)]
    assert codes == ["job_cancelled", "deadline_exceeded"]
    assert [video.status for video in stock.client.videos.list()] == ["failed", "failed"]


def test_a_video_whose_time_is_over_is_gone(api: ApiServer, stock: Stock) -> None:
    video = created(stock.client, size="640x384", seconds="8", extra_body={"seed": "5"})
    worker = worker_of(api, video)
    claim = worker.claim("video")
    worker.complete(claim, artifacts=[worker.artifact(claim, "video.mp4", "video/mp4", MP4)])
    done = stock.client.videos.retrieve(video.id)
    assert (done.status, done.size, done.seconds) == ("completed", "640x384", "8")
    assert stock.client.videos.download_content(video.id).content == MP4
    pass_time(api.services.db, api.services.settings.keep_artifacts_s + 1)
    api.services.jobs.prune(Retention.of(api.services.settings))
    error = stock.error(openai.APIStatusError, lambda: stock.client.videos.download_content(video.id))
    assert (error.status_code, error.code) == (410, "gone")


def test_nobody_sees_the_videos_of_others_nor_other_jobs(api: ApiServer, stock: Stock, other: openai.OpenAI) -> None:
    body = {"model": "echo_media", "messages": [{"role": "user", "content": "x"}]}
    text_job = api.http.post("/v1/jobs", json=body).json()["id"].replace("job-", "video_")
    video = created(stock.client).id
    stock.tries.clear()
    for client, video_id in ((other, video), (stock.client, text_job), (stock.client, "video_" + "0" * 32)):
        for call in (client.videos.retrieve, client.videos.delete, client.videos.download_content):
            with pytest.raises(openai.NotFoundError) as caught:
                call(video_id)
            assert (caught.value.code, caught.value.param) == ("not_found", "video_id")
            assert video_id in caught.value.message
    assert set(stock.tries) == {"0"}
    assert stock.client.videos.retrieve(video).status == "queued"


# Deletes.


def test_a_video_that_waits_is_deleted_at_once(api: ApiServer, stock: Stock) -> None:
    video = created(stock.client, input_reference=PNG)
    assert stock.client.videos.delete(video.id).deleted
    assert list(stock.client.videos.list()) == []
    assert api.http.get("/v1/jobs").json()["jobs"] == []
    stock.error(openai.NotFoundError, lambda: stock.client.videos.delete(video.id))


def test_a_video_whose_worker_hangs_is_deleted_by_the_client_s_next_try(
    api: ApiServer, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelled_job, "_ENDS_WITHIN_S", 0.1)
    video = created(stock.client)
    worker = worker_of(api, video)
    claim = worker.claim("video")
    with pytest.raises(openai.ConflictError) as caught:
        stock.client.with_options(max_retries=0).videos.delete(video.id)
    assert (caught.value.code, caught.value.param) == ("still_cancelling", "video_id")
    assert caught.value.response.headers["x-should-retry"] == "true"
    stopping = stock.client.videos.retrieve(video.id)
    assert (stopping.status, stopping.error) == ("in_progress", None)
    worker.lose(claim)
    assert stock.client.videos.delete(video.id).deleted


# What is refused.


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"model": "echo"}, "model"),
        ({"model": "speech"}, "model"),
        ({"model": openai.omit}, "model"),
        ({"prompt": ""}, "prompt"),
        ({"seconds": "four"}, "seconds"),
        ({"seconds": "-1"}, "seconds"),
        ({"seconds": "1e3"}, "seconds"),
        ({"seconds": "٣"}, "seconds"),
        ({"seconds": "61"}, "seconds"),
        ({"size": "large"}, "size"),
        ({"size": "0x480"}, "size"),
        ({"size": "832x4800"}, "size"),
        ({"size": "2048x2048", "seconds": "60"}, "size"),
        ({"input_reference": b"no picture"}, "input_reference"),
        ({"input_reference": b""}, "input_reference"),
        ({"input_reference": PNG[:40]}, "input_reference"),
        ({"extra_body": {"seed": "1.5"}}, "seed"),
        ({"extra_body": {"seed": "x"}}, "seed"),
        ({"extra_body": {"fps": "1e3"}}, "fps"),
        ({"extra_body": {"fps": "600"}}, "fps"),
        ({"extra_body": {"num_inference_steps": "0"}}, "num_inference_steps"),
        ({"extra_body": {"flow_shift": "3.0"}}, "flow_shift"),
        ({"extra_body": {"negative_prompt": "fog"}}, "negative_prompt"),
        ({"extra_body": {"extra_params": '{"fps": 4'}}, "extra_params"),
        ({"extra_body": {"extra_params": "[]"}}, "extra_params"),
        ({"extra_body": {"extra_params": '{"nope": 4}'}}, "extra_params.nope"),
        ({"extra_body": {"fps": 4, "extra_params": {"fps": 5}}}, "extra_params.fps"),
        ({"extra_body": {"extra_params": {"fps": 500}}}, "extra_params.fps"),
        ({"extra_body": {"stages": {"video": {"fps": 500}}}}, "stages.video.fps"),
        ({"extra_body": {"stages": '{"video": {"fps": 5}}', "fps": "4"}}, "fps"),
        ({"extra_body": {"stages": '{"video": 5}'}}, "stages.video"),
        ({"extra_body": {"stages": '{"answer": {}}'}}, "stages.answer"),
        ({"extra_body": {"quality": "high"}}, "quality"),
        ({"extra_body": {"input_reference": "text"}}, "input_reference"),
    ],
)
def test_what_is_refused_is_named_and_leaves_nothing(
    api: ApiServer, stock: Stock, more: dict[str, Any], param: str
) -> None:
    stored = set(api.services.store.list(""))
    error = stock.error(openai.BadRequestError, lambda: created(stock.client, **more))
    assert (error.code, error.type, error.param) == ("invalid_request", "invalid_request_error", param)
    assert api.http.get("/v1/jobs").json()["jobs"] == []
    assert set(api.services.store.list("")) == stored


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"size": "8320x32"},
            "size: width: must be less than or equal to 2048; height: must be greater than or equal to 64",
        ),
        (
            {"size": "2048x2048", "seconds": "60"},
            "size: width x height x seconds x fps are 2013265920 video_pixels, which must be at least 1 and at most "
            "134217728 (a limit of this pipeline)",
        ),
    ],
)
def test_what_is_wrong_with_a_size_is_said(stock: Stock, more: dict[str, Any], message: str) -> None:
    error = stock.error(openai.BadRequestError, lambda: created(stock.client, **more))
    assert error.param == "size"
    assert error.message.endswith(f" - {message}")


def test_an_unknown_model_is_not_found(stock: Stock) -> None:
    error = stock.error(openai.NotFoundError, lambda: created(stock.client, model="sora-2"))
    assert error.param == "model"


@pytest.mark.parametrize("variant", ["thumbnail", "spritesheet", "poster"])
def test_other_variants_of_a_video_are_refused(stock: Stock, variant: Any) -> None:
    video_id = created(stock.client).id
    error = stock.error(openai.BadRequestError, lambda: stock.client.videos.download_content(video_id, variant=variant))
    assert error.param == "variant"


@pytest.mark.parametrize(
    "call",
    [
        lambda client, video_id: client.videos.remix(video_id, prompt="another"),
        lambda client, video_id: client.videos.edit(prompt="another", video=b"x"),
        lambda client, video_id: client.videos.extend(prompt="on", seconds="4", video=b"x"),
        lambda client, video_id: client.videos.create_character(name="Ada", video=b"x"),
        lambda client, video_id: client.videos.get_character(video_id),
    ],
    ids=["remix", "edit", "extend", "create_character", "get_character"],
)
def test_what_is_not_there_is_not_found(stock: Stock, call: Callable[[openai.OpenAI, str], Any]) -> None:
    video = created(stock.client)
    stock.error(openai.NotFoundError, lambda: call(stock.client, video.id))


BOUNDARY = {"Content-Type": "multipart/form-data; boundary=x"}
PROMPT = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na boat\r\n'
MODEL = PROMPT.replace(b"prompt", b"model").replace(b"a boat", b"echo_media")
FILE = b'--x\r\nContent-Disposition: form-data; name="%s"; filename="a"\r\n\r\nGIF8\r\n'


@pytest.mark.parametrize(
    ("headers", "body", "status", "param"),
    [
        (BOUNDARY, MODEL + PROMPT + PROMPT + b"--x--\r\n", 400, "prompt"),
        (BOUNDARY, MODEL + PROMPT, 400, "body"),
        (BOUNDARY, MODEL + PROMPT.replace(b"a boat", b"\xff") + b"--x--\r\n", 400, "prompt"),
        (BOUNDARY, MODEL + PROMPT.replace(b"a boat", b"a\0b") + b"--x--\r\n", 400, "prompt"),
        (BOUNDARY, MODEL + PROMPT + FILE % b"mask" + b"--x--\r\n", 400, "mask"),
        (BOUNDARY, MODEL + PROMPT + 2 * (FILE % b"input_reference") + b"--x--\r\n", 400, "input_reference"),
        (BOUNDARY, MODEL + PROMPT + 3 * (FILE % b"input_reference") + b"--x--\r\n", 400, "body"),
        (BOUNDARY, b"--x--\r\n", 400, "model"),
        ({"Content-Type": "multipart/form-data"}, MODEL + PROMPT + b"--x--\r\n", 400, "body"),
        ({"Content-Type": "text/plain"}, b"a boat", 415, "Content-Type"),
        ({"Content-Type": "application/json"}, b"{", 400, "body"),
        ({"Content-Type": "application/json"}, b'{"model": "echo_media", "prompt": 7}', 400, "prompt"),
        (
            {"Content-Type": "application/json"},
            b'{"model": "echo_media", "prompt": "x", "seconds": true}',
            400,
            "seconds",
        ),
        (
            {"Content-Type": "application/json"},
            b'{"model": "echo_media", "prompt": "x", "input_reference": {"file_id": "file-1"}}',
            400,
            "input_reference.file_id",
        ),
        (
            {"Content-Type": "application/json"},
            b'{"model": "echo_media", "prompt": "x", "input_reference": {"image_url": "http://127.0.0.1/"}}',
            400,
            "input_reference",
        ),
        (
            {"Content-Type": "application/json"},
            b'{"model": "echo_media", "prompt": "x", "input_reference": [1]}',
            400,
            "input_reference",
        ),
        (
            {"Content-Type": "application/json"},
            b'{"model": "echo_media", "prompt": "x", "extra_params": "{}"}',
            400,
            "extra_params",
        ),
    ],
)
def test_what_no_stock_client_sends_is_refused(
    api: ApiServer, headers: dict[str, str], body: bytes, status: int, param: str
) -> None:
    answer = api.http.post("/v1/videos", content=body, headers=headers)
    error = checked_error(answer.status_code, answer.headers, answer.content)
    assert (answer.status_code, error["param"]) == (status, param), error
    assert api.http.get("/v1/jobs").json()["jobs"] == []
