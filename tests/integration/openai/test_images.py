"""Pictures with the stock client: real workers draw and edit them, whole and in streams."""

import io
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from PIL import Image

from omni_jobs.api import media_answer
from tests.integration.api_server import ApiServer
from tests.integration.openai.stock import Stock
from tests.integration.openai.test_chat_completions import running_job
from workers.runners.echo.card import strip

PROMPT = "A lighthouse, 漢字 and 😀"
LATE_S = 60.0
HOSTILE = ("../../etc/passwd", "\u202egnp.exe", "a\0b.png", 'x"; filename="y.png', "\r\nX-Evil: 1")


def generate(stock: Stock, prompt: str = PROMPT, **more: Any) -> Any:
    return stock.client.images.generate(**{"model": "echo_media", "prompt": prompt, **more})


def edit(stock: Stock, image: Any, prompt: str = PROMPT, **more: Any) -> Any:
    return stock.client.images.edit(**{"model": "echo_media", "image": image, "prompt": prompt, **more})


def opened(data: str) -> Image.Image:
    return Image.open(io.BytesIO(b64decode(data, validate=True)))


def shows(picture: Image.Image, prompt: str, seed: int) -> bool:
    """Whether the picture's strip says that it was made of this prompt with this seed."""
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    wanted = strip(prompt, seed, *pixels.shape[:2]).astype(int)
    return bool((abs(pixels[-len(wanted) :] - wanted) < 100).mean() > 0.99)  # all but the edges, where it is lossy


def slowly(seconds: float, **more: Any) -> dict[str, Any]:
    return {"stages": {"picture": {"delay_s": seconds, **more}}}


def one_colour(colour: tuple[int, int, int], width: int = 96, height: int = 64) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def jobs_of(api: ApiServer, count: int) -> list[dict[str, Any]]:
    return list(reversed(api.http.get("/v1/jobs", params={"limit": count}).json()["jobs"]))


def steps_of(api: ApiServer, job: dict[str, Any]) -> object:
    """What a job was asked for: its progress says so, too, unless it has ended before the first report was written."""
    return api.services.jobs.admitted_request(job["id"])["parameters"]["picture"]["steps"]


# Whole answers.


def test_a_picture_of_the_prompt_and_the_seed(stock: Stock, echo_media: ApiServer) -> None:
    answer = generate(stock, size="256x128", extra_body={"seed": 7})
    [made] = answer.data
    assert (answer.output_format, answer.size, answer.usage, made.url) == ("png", "256x128", None, None)
    picture = opened(made.b64_json)
    assert (picture.format, picture.size) == ("PNG", (256, 128))
    assert shows(picture, PROMPT, 7)
    [job] = jobs_of(echo_media, 1)
    assert (job["status"], job["modalities"], job["seed"]) == ("completed", ["image"], 7)


def test_several_pictures_are_several_jobs_with_the_next_seeds(stock: Stock, echo_media: ApiServer) -> None:
    answer = generate(stock, n=3, size="auto", extra_body={"seed": 40})
    pictures = [opened(made.b64_json) for made in answer.data]
    assert {picture.size for picture in pictures} == {(512, 512)}
    assert answer.size is None
    assert [shows(picture, PROMPT, 40 + number) for number, picture in enumerate(pictures)] == [True] * 3
    assert [job["seed"] for job in jobs_of(echo_media, 3)] == [40, 41, 42]


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
def test_the_format_is_chosen(stock: Stock, format: Any) -> None:
    answer = generate(stock, output_format=format, size="128x128", extra_body={"seed": 3})
    picture = opened(answer.data[0].b64_json)
    assert (answer.output_format, picture.format) == (format, format.upper())
    assert shows(picture, PROMPT, 3)


def test_a_url_has_the_picture(stock: Stock, echo_media: ApiServer) -> None:
    answer = generate(stock, n=2, response_format="url", output_format="webp", size="128x64")
    assert [made.b64_json for made in answer.data] == [None, None]
    for made in answer.data:
        assert made.url.startswith(f"http://{echo_media.host}:{echo_media.port}/v1/jobs/job-")
        got = httpx2.get(made.url)
        assert got.headers["content-type"] == "image/webp"
        assert Image.open(io.BytesIO(got.content)).size == (128, 64)


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_answer_is_sent_in_pieces(stock: Stock, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """The store gives pieces of 1 MiB, which is no multiple of 3."""
    monkeypatch.setattr(media_answer, "_WHOLE_BYTES", 1 << 20)
    pixels = np.random.default_rng(1).integers(0, 256, (800, 800, 3), np.uint8)
    noise = io.BytesIO()
    Image.fromarray(pixels).save(noise, "PNG", compress_level=0)
    answer = edit(stock, noise.getvalue(), n=2, stream=stream, extra_body={"seed": 2})
    for number, made in enumerate(list(answer) if stream else answer.data):
        assert len(made.b64_json) > 2 << 20
        picture = opened(made.b64_json)
        assert (np.asarray(picture)[:600] == 255 - pixels[:600]).all()
        assert shows(picture, PROMPT, 2 + number)


def test_vllm_omni_s_names_are_the_stages_and_what_is_ignored_is_told(stock: Stock, echo_media: ApiServer) -> None:
    raw = stock.client.images.with_raw_response.generate(
        model="echo_media",
        prompt=PROMPT,
        quality="high",
        style="vivid",
        background="opaque",
        moderation="low",
        output_compression=80,
        user="u-1",
        extra_body={"num_inference_steps": 5, "negative_prompt": None},
    )
    assert raw.headers["x-ignored"] == "moderation, user, quality, background, style, output_compression"
    [job] = jobs_of(echo_media, 1)
    assert steps_of(echo_media, job) == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_gives_the_same_picture_again(stock: Stock, stream: bool) -> None:
    headers = {"Idempotency-Key": f"drawn-{stream}"}
    first = generate(stock, n=2, extra_headers=headers)
    if stream:
        again = [event.b64_json for event in generate(stock, n=2, stream=True, extra_headers=headers)]
    else:
        again = [made.b64_json for made in generate(stock, n=2, extra_headers=headers).data]
    assert again == [made.b64_json for made in first.data]
    error = stock.error(openai.BadRequestError, lambda: generate(stock, "Another", n=2, extra_headers=headers))
    assert (error.code, error.param) == ("idempotency_key_reused", "Idempotency-Key")


# Edits.


def test_a_picture_is_edited(stock: Stock) -> None:
    answer = edit(stock, ("lamp.png", one_colour((200, 0, 0)), "image/png"), extra_body={"seed": 9})
    picture = opened(answer.data[0].b64_json)
    assert picture.size == (96, 64)
    assert picture.getpixel((10, 10)) == (55, 255, 255)
    assert shows(picture, PROMPT, 9)


def test_several_pictures_are_edited_in_their_order(stock: Stock) -> None:
    colours = ((200, 0, 0), (0, 200, 0), (0, 0, 200))
    sources = [(name, one_colour(colour)) for name, colour in zip(HOSTILE, colours, strict=False)]
    answer = edit(stock, sources, n=2, size="192x96", output_format="png", extra_body={"seed": 1})
    for number, made in enumerate(answer.data):
        picture = opened(made.b64_json)
        assert picture.size == (192, 96)
        found = [picture.getpixel((32 + 64 * place, 10)) for place in range(3)]
        assert found == [(55, 255, 255), (255, 55, 255), (255, 255, 55)]
        assert shows(picture, PROMPT, 1 + number)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_s_name_decides_nothing(stock: Stock, echo_media: ApiServer, name: str) -> None:
    answer = edit(stock, (name, one_colour((0, 0, 0)), "text/html"), response_format="url")
    assert answer.data[0].url.endswith("/artifacts/image.png")
    [job] = jobs_of(echo_media, 1)
    assert name not in str(job)


def test_fields_of_a_form_have_their_types(stock: Stock, echo_media: ApiServer) -> None:
    more = {"num_inference_steps": 3, "stages": {"picture": {"width": 64}}, "seed": 5}
    edit(stock, one_colour((1, 2, 3)), "12", n=1, extra_body=more)
    [job] = jobs_of(echo_media, 1)
    assert (job["seed"], steps_of(echo_media, job)) == (5, 3)


# Streams.


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_stream_has_at_most_as_many_previews_as_wanted(stock: Stock, most: int) -> None:
    body = {"seed": 6, **slowly(0.8, steps=40)}
    events = list(generate(stock, size="192x192", stream=True, partial_images=most, extra_body=body))
    *previews, last = events
    assert len(previews) <= most  # fewer where the machine is too busy to see them all
    assert {event.type for event in previews} <= {"image_generation.partial_image"}
    assert [event.partial_image_index for event in previews] == list(range(len(previews)))
    for event in previews:
        assert (event.output_format, opened(event.b64_json).format, event.size) == ("jpeg", "JPEG", "192x192")
        assert event.created_at > 0
    assert len({event.b64_json for event in previews}) == len(previews)
    assert (last.type, last.output_format, last.size, last.usage) == (
        "image_generation.completed",
        "png",
        "192x192",
        None,
    )
    assert shows(opened(last.b64_json), PROMPT, 6)


def test_a_preview_comes_while_the_picture_is_drawn(stock: Stock, echo_media: ApiServer) -> None:
    stream = generate(stock, stream=True, partial_images=3, extra_body=slowly(12, steps=120))
    preview = next(stream)
    job_id = running_job(echo_media)
    assert preview.type == "image_generation.partial_image"
    assert opened(preview.b64_json).format == "JPEG"
    stream.close()
    assert echo_media.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 200


def test_an_edit_streams_as_well_and_pictures_come_one_after_the_other(stock: Stock) -> None:
    body = {"seed": 8, **slowly(0.5)}
    events = list(edit(stock, one_colour((9, 9, 9)), n=2, stream=True, partial_images=1, extra_body=body))
    completed = [event for event in events if event.type == "image_edit.completed"]
    assert {event.type for event in events} <= {"image_edit.partial_image", "image_edit.completed"}
    assert [shows(opened(event.b64_json), PROMPT, 8 + number) for number, event in enumerate(completed)] == [True] * 2
    assert events[-1] is completed[-1]


# What is refused.


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 11}, "n"),
        ({"n": 0}, "n"),
        ({"size": "1024"}, "size"),
        ({"size": "63x512"}, "size"),
        ({"size": "4096x4096"}, "size"),
        ({"output_format": "gif"}, "output_format"),
        ({"response_format": "file"}, "response_format"),
        ({"response_format": "url", "stream": True}, "response_format"),
        ({"partial_images": 4, "stream": True}, "partial_images"),
        ({"partial_images": 1}, "partial_images"),
        ({"background": "transparent"}, "background"),
        ({"frame_count": 4}, "frame_count"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"model": None}, "model"),
        ({"model": "echo_media\u202e"}, "model"),
        ({"extra_body": {"seed": "7"}}, "seed"),
        ({"extra_body": {"seed": -1}}, "seed"),
        ({"extra_body": {"num_inference_steps": 500}}, "num_inference_steps"),
        ({"extra_body": {"num_inference_steps": 3, **slowly(0, steps=4)}}, "num_inference_steps"),
        ({"extra_body": {"true_cfg_scale": 4}}, "true_cfg_scale"),
        ({"extra_body": {"negative_prompt": "people"}}, "negative_prompt"),
        ({"extra_body": {"flow_shift": 3}}, "flow_shift"),
        ({"extra_body": slowly(-1)}, "stages.picture.delay_s"),
        ({"extra_body": {"stages": {"answer": {}}}}, "stages.answer"),
        ({"extra_body": {"stages": [1]}}, "stages"),
    ],
)
def test_what_is_refused_names_the_client_s_field(
    stock: Stock, echo_media: ApiServer, more: dict[str, Any], param: str
) -> None:
    before = jobs_of(echo_media, 1)
    kind = openai.NotFoundError if "\u202e" in str(more.get("model")) else openai.BadRequestError
    error = stock.error(kind, lambda: generate(stock, **more))
    assert error.param == param
    assert jobs_of(echo_media, 1) == before


def test_what_is_wrong_with_each_side_is_said(stock: Stock) -> None:
    error = stock.error(openai.BadRequestError, lambda: generate(stock, size="63x4096"))
    assert error.param == "size"
    assert error.message.endswith(
        " - size: width: must be greater than or equal to 64; height: must be less than or equal to 2048"
    )


@pytest.mark.parametrize(
    ("image", "more", "param"),
    [
        (b"no picture", {}, "image"),
        (b"", {}, "image"),
        ([one_colour((0, 0, 0)), b"no picture"], {}, "image.1"),
        ([one_colour((0, 0, 0))] * 17, {}, "image"),
        (one_colour((0, 0, 0)), {"mask": one_colour((0, 0, 0))}, "mask"),
        (one_colour((0, 0, 0)), {"markup": one_colour((0, 0, 0))}, "markup"),
        (one_colour((0, 0, 0)), {"extra_body": {"n": "two"}}, "n"),
        (one_colour((0, 0, 0)), {"extra_body": {"stages": "{"}}, "stages"),
        (one_colour((0, 0, 0)), {"extra_body": {"a": {"b": "c"}}}, "a[b]"),
        (one_colour((0, 0, 0)), {"size": "63x64"}, "size"),
    ],
)
def test_what_is_refused_of_an_edit(
    stock: Stock, echo_media: ApiServer, image: Any, more: dict[str, Any], param: str
) -> None:
    before = jobs_of(echo_media, 1)
    error = stock.error(openai.BadRequestError, lambda: edit(stock, image, **more))
    assert error.param == param
    assert ("is empty" in error.message) == (image == b"")
    assert ("size: width: must be" in error.message) == ("size" in more)
    assert jobs_of(echo_media, 1) == before


PART = 'Content-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
TEXTS = {"model": "echo_media", "prompt": "x"}


def form(*parts: tuple[str, str], end: str = "--b--\r\n") -> str:
    return "".join(f"--b\r\n{PART.format(name, text)}" for name, text in parts) + end


@pytest.mark.parametrize(
    ("body", "content_type", "status", "param"),
    [
        (form(*TEXTS.items()), "multipart/form-data; boundary=b", 400, "image"),
        (form(*TEXTS.items(), ("image", "text")), "multipart/form-data; boundary=b", 400, "image"),
        (form(*TEXTS.items(), ("prompt", "y")), "multipart/form-data; boundary=b", 400, "prompt"),
        (form(*TEXTS.items(), ('image"; filename="p', "no picture")), "multipart/form-data; boundary=b", 400, "image"),
        (
            form(('prompt"; filename="p', "x"), ("model", "echo_media"), ('image"; filename="p', "x")),
            "multipart/form-data; boundary=b",
            400,
            "prompt",
        ),
        (form(*TEXTS.items(), end=""), "multipart/form-data; boundary=b", 400, "body"),
        (form(*TEXTS.items()), "multipart/form-data", 400, "body"),
        ("{}", "application/json", 415, "Content-Type"),
    ],
)
def test_a_bad_form(echo_media: ApiServer, body: str, content_type: str, status: int, param: str) -> None:
    before = jobs_of(echo_media, 1)
    answer = echo_media.http.post("/v1/images/edits", content=body.encode(), headers={"Content-Type": content_type})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert jobs_of(echo_media, 1) == before


def test_variations_are_not_served(stock: Stock) -> None:
    error = stock.error(openai.NotFoundError, lambda: stock.client.images.create_variation(image=b"x"))
    assert error.code == "not_found"


# Jobs that do not complete.


def test_a_cancelled_job_is_a_conflict(stock: Stock, echo_media: ApiServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stock.error, openai.ConflictError, lambda: generate(stock, extra_body=slowly(600)))
        job_id = running_job(echo_media)
        echo_media.http.post(f"/v1/jobs/{job_id}/cancel")
        error = waiting.result(LATE_S)
    assert (error.code, error.body["job_id"]) == ("job_cancelled", job_id)  # type: ignore[index]


def test_a_stream_whose_job_is_cancelled_ends_in_an_error(stock: Stock, echo_media: ApiServer) -> None:
    stream = generate(stock, stream=True, partial_images=3, extra_body=slowly(600, steps=200))
    job_id = running_job(echo_media)
    echo_media.http.post(f"/v1/jobs/{job_id}/cancel")
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "job_cancelled"
    assert caught.value.body["job_id"] == job_id  # type: ignore[index]
