"""Videos with the stock client: real workers make them, and the client polls, lists, fetches and deletes them."""

import hashlib
import io
import json
from typing import Any

import av
import numpy as np
import openai
from PIL import Image
from sqlalchemy import text

from omni_jobs.database.tables import decode_json
from omni_jobs.storage import ObjectRef
from tests.integration.api_server import ApiServer
from tests.integration.openai.stock import Stock
from tests.oracles import samples

SMALL: dict[str, Any] = {"model": "echo_media", "size": "160x96", "seconds": "2"}


def slowly(seconds: float) -> dict[str, Any]:
    return {"video": {"delay_s": seconds}}


def frames_of(data: bytes) -> list[np.ndarray[Any, Any]]:
    """The pictures of a video, uint8 [H, W, 3]."""
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def strip_of(frame: np.ndarray[Any, Any]) -> bytes:
    """What the strip of the test card says (docs/operations/echo.md), read in the middle of its squares."""
    height, width = frame.shape[0], frame.shape[1]
    top = height - height // 6
    rows = [top + (2 * row + 1) * (height // 6) // 16 for row in range(8)]
    columns = [(2 * column + 1) * width // 64 for column in range(32)]
    return np.packbits(frame[rows][:, columns, 0] > 127).tobytes()


def said(seed: int, prompt: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{prompt}".encode()).digest()


def test_a_video_is_made_polled_and_fetched(stock: Stock, tmp_path: Any) -> None:
    created = stock.client.videos.create(prompt="a boat, 漢字", extra_body={"seed": 7, "fps": 6}, **SMALL)
    assert created.id.startswith("video_")
    assert created.status in ("queued", "in_progress")
    assert (created.size, created.seconds, created.prompt) == ("160x96", "2", "a boat, 漢字")
    video = stock.client.videos.poll(created.id)
    assert (video.status, video.progress, video.error, video.object) == ("completed", 100, None, "video")
    assert video.completed_at is not None
    assert video.expires_at is not None
    assert video.created_at <= video.completed_at < video.expires_at
    stock.client.videos.download_content(video.id).write_to_file(tmp_path / "boat.mp4")
    frames = frames_of((tmp_path / "boat.mp4").read_bytes())
    assert len(frames) == 12
    assert {frame.shape for frame in frames} == {(96, 160, 3)}
    assert {strip_of(frame) for frame in frames} == {said(7, "a boat, 漢字")}


def test_create_and_poll_goes_by_the_pause_that_it_is_told(stock: Stock) -> None:
    video = stock.client.videos.create_and_poll(prompt="a boat", extra_body={"stages": slowly(1.5)}, **SMALL)
    assert video.status == "completed"
    assert 3 <= len(stock.tries) <= 6  # a create, and a look every half second


def test_a_picture_to_start_from_arrives_whole(stock: Stock, echo_media: ApiServer) -> None:
    halves = Image.new("RGB", (160, 96), "red")
    halves.paste("blue", (80, 0, 160, 96))
    file = io.BytesIO()
    halves.save(file, "PNG")
    given = ("../../\u202egnp.exe", file.getvalue())  # a file's name says nothing, and is dropped
    video = stock.client.videos.create_and_poll(prompt="a flag", input_reference=given, **SMALL)
    [first, *_] = frames_of(stock.client.videos.download_content(video.id).content)
    assert [int(first[20, x, 0]) > 128 for x in (40, 120)] == [True, False]
    assert media_of(echo_media, video.id) == [("image/png", file.getvalue())]


def test_a_video_to_start_from_arrives_whole(stock: Stock, echo_media: ApiServer) -> None:
    given = samples.video(5)
    video = stock.client.videos.create_and_poll(prompt="a walk", input_reference=given, **SMALL)
    assert video.status == "completed"
    assert media_of(echo_media, video.id) == [("video/mp4", given)]


def media_of(api: ApiServer, video_id: str) -> list[tuple[str, bytes]]:
    """The media of a job: what they were seen to be, and their bytes in the store."""
    query = text("SELECT media FROM jobs WHERE id = :id")
    with api.services.db.begin() as tx:
        stored = decode_json(tx.execute(query, {"id": video_id.replace("video_", "job-")}).scalar_one())
    store = api.services.store
    refs = [ObjectRef.model_validate({name: each[name] for name in ObjectRef.model_fields}) for each in stored]
    return [
        (each["media_type"], bytes(store.read(ref, max_bytes=1 << 20))) for each, ref in zip(stored, refs, strict=True)
    ]


def test_vllm_omni_s_names_and_parameters_by_stage(stock: Stock) -> None:
    more = {
        "seed": "9",
        "fps": 4,
        "num_inference_steps": "3",
        "extra_params": {"steps": 3},
        "stages": json.dumps(slowly(0.0)),
    }
    video = stock.client.videos.create_and_poll(prompt="a boat", extra_body=more, **SMALL)
    frames = frames_of(stock.client.videos.download_content(video.id).content)
    assert len(frames) == 8
    assert strip_of(frames[0]) == said(9, "a boat")


def test_a_running_video_is_polled_at_intervals_and_deleted(stock: Stock, echo_media: ApiServer) -> None:
    created = stock.client.videos.create(prompt="a boat", extra_body={"stages": slowly(600)}, **SMALL)
    while (seen := stock.client.videos.with_raw_response.retrieve(created.id)).parse().status == "queued":
        assert int(seen.headers["openai-poll-after-ms"]) in (500, 1000, 2000, 5000, 10000)
    running = seen.parse()
    assert (running.status, running.completed_at, running.expires_at) == ("in_progress", None, None)
    assert 0 <= running.progress < 100
    deleted = stock.client.videos.delete(created.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (created.id, "video.deleted", True)
    stock.error(openai.NotFoundError, lambda: stock.client.videos.retrieve(created.id))
    assert echo_media.http.get(f"/v1/jobs/{created.id.replace('video_', 'job-')}").status_code == 404


def test_parts_of_a_video_are_fetched(stock: Stock, echo_media: ApiServer) -> None:
    video = stock.client.videos.create_and_poll(prompt="a boat", **SMALL)
    done = stock.client.videos.with_raw_response.retrieve(video.id)
    assert "openai-poll-after-ms" not in done.headers
    path = f"/v1/videos/{video.id}/content"
    whole = echo_media.http.get(path)
    assert (whole.status_code, whole.headers["content-type"]) == (200, "video/mp4")
    part = echo_media.http.get(path, headers={"Range": "bytes=4-11"})
    assert (part.status_code, part.content) == (206, whole.content[4:12])
    assert part.headers["content-range"] == f"bytes 4-11/{len(whole.content)}"
    rest = echo_media.http.get(path, headers={"Range": "bytes=-9", "If-Range": whole.headers["etag"]})
    assert rest.content == whole.content[-9:]
    assert echo_media.http.get(path, headers={"Range": "bytes=99999999-"}).status_code == 416
    assert echo_media.http.get(path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    assert echo_media.http.head(path).headers["content-length"] == str(len(whole.content))
    chunks = stock.client.videos.with_streaming_response.download_content(video.id, variant="video")
    with chunks as response:
        assert b"".join(response.iter_bytes()) == whole.content


def test_json_asks_as_a_form_does(stock: Stock, echo_media: ApiServer) -> None:
    picture = samples.image_part(samples.image(64, 48))["image_url"]["url"]
    body = {"prompt": "a boat", "seed": 5, "fps": 5, "input_reference": {"image_url": picture}, **SMALL, "seconds": 1}
    answer = echo_media.http.post("/v1/videos", json=body)
    assert answer.status_code == 200
    video = stock.client.videos.poll(answer.json()["id"])
    assert (video.seconds, video.size) == ("1", "160x96")
    assert media_of(echo_media, video.id) == [("image/png", samples.image(64, 48))]
    frames = frames_of(stock.client.videos.download_content(video.id).content)
    assert (len(frames), strip_of(frames[0])) == (5, said(5, "a boat"))


def test_a_key_gives_the_same_video_again(stock: Stock) -> None:
    asked: dict[str, Any] = {"prompt": "once", "extra_headers": {"Idempotency-Key": "film-1"}, **SMALL}
    picture = samples.image(64, 48)
    first = stock.client.videos.create(input_reference=picture, **asked)
    assert stock.client.videos.create(input_reference=picture, **asked).id == first.id
    another = samples.image(64, 50)
    error = stock.error(openai.BadRequestError, lambda: stock.client.videos.create(input_reference=another, **asked))
    assert (error.code, error.param) == ("idempotency_key_reused", "Idempotency-Key")


async def test_the_asynchronous_client_does_the_same(echo_media: ApiServer) -> None:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    url = f"http://{echo_media.host}:{echo_media.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http) as client:
        video = await client.videos.create_and_poll(prompt="a boat", **SMALL)
        content = await client.videos.download_content(video.id)
        assert len(frames_of(content.content)) == 16
        assert video.id in [each.id async for each in client.videos.list(limit=1)]
