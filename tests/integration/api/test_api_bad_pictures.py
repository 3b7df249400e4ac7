"""Bad requests for pictures over HTTP: each a 4xx that names its field, and nothing of it is stored."""

import io
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from PIL import Image
from sqlalchemy import Connection, text

from omni_jobs.database.database import Database
from omni_jobs.requests import admit, parse
from tests import hostile
from tests.integration.api_server import ApiServer, checked_error, serve, server_settings
from tests.oracles import samples
from tests.services.checkpoint import TinyCheckpoints

STORED = ("jobs", "stage_runs", "artifacts", "garbage")


@pytest.fixture(scope="module")
def api(
    valkey_server: str,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_qwen_images: TinyCheckpoints,
    tiny_glm_images: TinyCheckpoints,
) -> Iterator[ApiServer]:
    """A server of the three pipelines that draw; nobody works."""
    settings = server_settings(
        tmp_path_factory.mktemp("api"),
        valkey_server,
        pipelines=("qwen_image", "glm_image", "upscale"),
        models={"qwen_image": tiny_qwen_images(0), "glm_image": tiny_glm_images(0)},
    )
    Database(settings.resolved_database_url).migrate()
    with serve(settings) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_stored(api: ApiServer) -> Iterator[None]:
    yield
    assert api.services.db.read(rows) == 0
    assert list(api.services.store.list("")) == []


def rows(tx: Connection) -> int:
    """The rows of jobs and of what belongs to them."""
    return sum(int(tx.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()) for table in STORED)


class Bad(NamedTuple):
    """What is added to a good request, and what is said of it; ``raw``: JSON text that no JSON value stands for."""

    body: Mapping[str, Any]
    field: str
    complaint: str
    status: int = 422
    raw: tuple[str, str] | None = None  # what stands in the request's text, and what is put there


def says(*content: Any, role: str = "user") -> dict[str, Any]:
    parts: Any = content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)
    return {"messages": [{"role": role, "content": parts}]}


def stage(name: str, **parameters: Any) -> dict[str, Any]:
    return {"stages": {name: parameters}}


def picture(*files: bytes) -> dict[str, Any]:
    return says(*map(samples.image_part, files))


def nan(stage_name: str, parameter: str) -> Bad:
    """NaN is no JSON, so that it can only come as text."""
    return Bad(
        stage(stage_name, **{parameter: 123.0}),
        f"stages.{stage_name}.{parameter}",
        "NaN is no JSON number",
        raw=("123.0", "NaN"),
    )


TOO_MANY_TOKENS = "boat " * 100_000
TEXT = "messages.0.content"
GOOD = samples.image(40, 30)
IMAGE = "messages.0.content.0.image_url.url"
MASK = {"type": "mask", "mask": {"url": "data:image/png;base64,AAAA"}}

# What is the same for all: a seed, the form of the messages, a mask, an edit.
COMMON: dict[str, Bad] = {
    "seed of -1": Bad({"seed": -1}, "seed", "greater than or equal to 0"),
    "seed of 2**63": Bad({"seed": 2**63}, "seed", "less than"),
    "seed a fraction": Bad({"seed": 1.5}, "seed", "integer"),
    "seed NaN": Bad({"seed": 123.0}, "seed", "NaN is no JSON number", raw=("123.0", "NaN")),
    "several pictures": Bad({"n": 4}, "n", "several jobs"),
    "no message": Bad({"messages": []}, "messages", "1 or more"),
    "nothing said": Bad(says(""), TEXT, "empty"),
    "an unknown stage": Bad(stage("paint", steps=1), "stages.paint", "no such stage"),
    "an unknown format": Bad({"image": {"format": "tiff"}}, "image.format", "png, jpeg, webp"),
    "another output": Bad({"modalities": ["audio"]}, "modalities.0", "does not make 'audio'"),
    "a mask": Bad({"mask": "AAAA"}, "mask", "unknown key"),
    "a mask in the image's options": Bad({"image": {"mask": "AAAA"}}, "image.mask", "unknown key"),
    "a mask in the messages": Bad(says(MASK), "messages.0.content.0", "must be an object of type"),
}

DRAWING: dict[str, Bad] = {
    "a description of 10**5 tokens": Bad(says(TOO_MANY_TOKENS), "messages", "tokens"),
    "a mask of another size": Bad(
        says(samples.image_part(samples.image(64, 64)), MASK), "messages.0.content.1", "type"
    ),
    "embeddings": Bad({"messages": None, "prompt_embeds": {"data": "AAAA"}}, "prompt_embeds", "takes no embeddings"),
    "a description by the assistant": Bad(says("a boat", role="assistant"), "messages.0", "user"),
    "0 steps": Bad(stage("denoise", steps=0), "stages.denoise.steps", "greater than or equal to 1"),
    "10**4 steps": Bad(stage("denoise", steps=10**4), "stages.denoise.steps", "less than or equal to 200"),
    "steps a fraction": Bad(stage("denoise", steps=2.5), "stages.denoise.steps", "integer"),
    "steps in quotes": Bad(stage("denoise", steps="4"), "stages.denoise.steps", "integer"),
    "steps of the decoding": Bad(stage("decode", steps=1), "stages.decode.steps", "unknown key"),
    "a mask in the denoising": Bad(stage("denoise", mask="AAAA"), "stages.denoise.mask", "unknown key"),
}


def sides(name: str, smallest: int, patch: int) -> dict[str, Bad]:
    width, height, wrong = f"stages.{name}.width", f"stages.{name}.height", 1000
    near = f"the nearest are {wrong // patch * patch} and {(wrong // patch + 1) * patch}"
    return {
        "a width of 0": Bad(stage(name, width=0), width, f"the nearest is {smallest}"),
        "a height of 1": Bad(stage(name, height=1), height, f"the nearest is {smallest}"),
        "a width of 10**6": Bad(stage(name, width=10**6), width, "the nearest is 2048"),
        "a negative height": Bad(stage(name, height=-64), height, f"the nearest is {smallest}"),
        "a width that does not divide": Bad(stage(name, width=wrong), width, near),
        "a height a fraction": Bad(stage(name, height=64.0), height, "integer"),
        "a width NaN": nan(name, "width"),
    }


QWEN_IMAGE: dict[str, Bad] = {
    **COMMON,
    **DRAWING,
    **sides("denoise", 16, 16),
    "an edit of a picture": Bad(picture(samples.image()), IMAGE, "takes no image"),
    "a description of blanks": Bad(says(" \n "), TEXT, "the description is empty"),
    "a token of the template": Bad(says("a boat <|im_end|>"), TEXT, "reserve"),
    "a token of pictures": Bad(says({"type": "text", "text": "<|vision_start|>"}), f"{TEXT}.0.text", "reserve"),
    "guidance NaN": nan("denoise", "true_cfg_scale"),
    "guidance below 1": Bad(stage("denoise", true_cfg_scale=0.5), "stages.denoise.true_cfg_scale", "greater"),
    "guidance of 1e9": Bad(stage("denoise", true_cfg_scale=1e9), "stages.denoise.true_cfg_scale", "less"),
    "guidance of another model": Bad(stage("denoise", guidance_scale=2.0), "stages.denoise.guidance_scale", "unknown"),
    "a negative prompt of 50,000 tokens": Bad(
        stage("encode", negative_prompt="a " * 50_000), "stages.encode.negative_prompt", "tokens"
    ),
    "a negative prompt of 10**5 tokens": Bad(
        stage("encode", negative_prompt=TOO_MANY_TOKENS), "stages.encode.negative_prompt", "at most 100000"
    ),
    "a negative prompt with the template's token": Bad(
        stage("encode", negative_prompt="<|im_start|>system"), "stages.encode.negative_prompt", "reserve"
    ),
}

GLM_IMAGE: dict[str, Bad] = {
    **COMMON,
    **DRAWING,
    "a description by the assistant": Bad(says("a boat", role="assistant"), "messages.0.role", "user"),
    **sides("generate", 64, 32),
    "a source of one pixel": Bad(
        says(samples.image_part(samples.image(1, 1)), {"type": "text", "text": "in blue"}), IMAGE, "at least 16"
    ),
    "a source and no words": Bad(picture(GOOD), TEXT, "says nothing of the picture"),
    "a source that is cut": Bad(
        says(samples.image_part(samples.image(640, 480)[:500]), {"type": "text", "text": "in blue"}),
        IMAGE,
        "does not decode",
    ),
    "a description of blanks": Bad(says(" \n "), TEXT, "says nothing of the picture"),
    "a token of the template": Bad(says("a <sop>36 24<eop> boat"), TEXT, "reserve"),
    "a token of pictures": Bad(says("a <|dit_token_17|> boat"), TEXT, "reserve"),
    "words in quotes of 10**4 bytes": Bad(says(f"a sign '{'x' * 10_000}'"), TEXT, "2048"),
    "guidance NaN": nan("denoise", "guidance_scale"),
    "guidance below 1": Bad(stage("denoise", guidance_scale=0.5), "stages.denoise.guidance_scale", "greater"),
    "guidance of 1e9": Bad(stage("denoise", guidance_scale=1e9), "stages.denoise.guidance_scale", "less"),
    "guidance of another model": Bad(stage("denoise", true_cfg_scale=2.0), "stages.denoise.true_cfg_scale", "unknown"),
    "a negative prompt": Bad(stage("denoise", negative_prompt="fog"), "stages.denoise.negative_prompt", "unknown"),
    "temperature NaN": nan("generate", "temperature"),
    "temperature of 1e9": Bad(stage("generate", temperature=1e9), "stages.generate.temperature", "less"),
    "top_p of 0": Bad(stage("generate", top_p=0.0), "stages.generate.top_p", "greater"),
    "so many tokens": Bad(stage("generate", max_tokens=3), "stages.generate.max_tokens", "unknown key"),
}


def sized(width: int, height: int) -> bytes:
    """A PNG that says it has this size, and has no pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [header, b"IDAT" + zlib.compress(b""), b"IEND"]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in chunks
    )


UPSCALE: dict[str, Bad] = {
    **COMMON,
    "text alone": Bad(says("a lighthouse"), "messages", "no picture"),
    "two pictures": Bad(picture(GOOD, GOOD), IMAGE.replace("content.0", "content.1"), "a job for each"),
    "a mask of another size": Bad(says(samples.image_part(GOOD), MASK), "messages.0.content.1", "type"),
    "a mask as a parameter": Bad(stage("enlarge", mask="AAAA"), "stages.enlarge.mask", "unknown key"),
    "a size": Bad(stage("enlarge", width=64), "stages.enlarge.width", "unknown key"),
    "an unknown network": Bad(stage("enlarge", network="../x"), "stages.enlarge.network", "must be"),
    "a network that is not listed": Bad(
        stage("enlarge", network="realesrgan-x4plus-anime"), "stages.enlarge.network", "lists no network"
    ),
    "a picture of no pixel": Bad(picture(sized(0, 40)), IMAGE, "PNG"),
    "a picture of 10**6 pixels' width": Bad(picture(sized(10**6, 40)), IMAGE, "at most", 413),
    "a picture that is too large": Bad(picture(sized(2049, 2048)), IMAGE, "at most 4194304 are enlarged", 413),
    "a picture that is cut": Bad(picture(samples.image(640, 480)[:500]), IMAGE, "does not decode"),
    "a bomb": Bad(picture(hostile.jpeg_scan_bomb()), IMAGE, "scans", 413),
    "no picture": Bad(picture(b"%PDF-1.7"), IMAGE, "AVIF, TIFF or BMP"),
    "a sound": Bad(says(samples.audio_part(samples.wav())), "messages.0.content.0.input_audio.data", "takes no audio"),
    "a picture of the assistant": Bad(says(samples.image_part(GOOD), role="assistant"), IMAGE, "user's"),
    "a picture elsewhere": Bad(
        says({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}), IMAGE, "not fetched"
    ),
}  # fmt: skip

TABLES = {"qwen_image": QWEN_IMAGE, "glm_image": GLM_IMAGE, "upscale": UPSCALE}
BASES = {"qwen_image": says("a red boat"), "glm_image": says("a red boat"), "upscale": picture(GOOD)}


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, table in TABLES.items() for name in table])
def test_it_is_refused_with_its_field(api: ApiServer, model: str, name: str) -> None:
    bad = TABLES[model][name]
    body = json.dumps({"model": model, **BASES[model], **bad.body})
    if bad.raw is not None:
        assert body.count(bad.raw[0]) == 1
        body = body.replace(*bad.raw)
    answer = api.http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    error = checked_error(answer.status_code, answer.headers, answer.content)
    assert (answer.status_code, error["field"], error["retryable"]) == (bad.status, bad.field, False), answer.text
    assert bad.complaint in error["message"]


@pytest.mark.parametrize("model", TABLES)
def test_a_mask_beside_the_request_is_refused(api: ApiServer, model: str) -> None:
    files = {
        "request": ("file", json.dumps({"model": model, **BASES[model]}).encode()),
        "mask": ("mask.png", samples.image(64, 64)),
    }
    answer = api.http.post("/v1/jobs", files=files)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "mask")


def test_what_a_job_may_set_is_shown_with_its_bounds(api: ApiServer) -> None:
    shown = {each["name"]: each["stages"] for each in api.http.get("/v1/pipelines").json()["pipelines"]}
    denoise = next(each for each in shown["qwen_image"] if each["name"] == "denoise")
    bounds = {
        name: {key: each for key, each in of.items() if each is not None} for name, of in denoise["bounds"].items()
    }
    assert bounds["steps"] == {"at_least": 1, "at_most": 200}
    assert bounds["width"] == {"at_least": 16, "at_most": 2048, "multiple_of": 16}
    assert bounds["pixels"] == {"at_least": 1}
    assert set(bounds) == {"steps", "true_cfg_scale", "width", "height", "pixels"}


def unusual() -> Iterator[tuple[str, bytes]]:
    """Pictures that are taken, though few programs write them; tests/e2e/test_upscale.py tells what comes of each."""
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "blue")]
    for format in ("GIF", "PNG", "WEBP"):
        file = io.BytesIO()
        frames[0].save(file, format, save_all=True, append_images=frames[1:], duration=100)
        yield f"animated {format}", file.getvalue()
    yield "16-bit", samples.image(40, 30, mode="I;16")
    yield "CMYK", samples.image(40, 30, format="JPEG", mode="CMYK")
    yield "a broken profile", samples.image(40, 30, icc_profile=b"no profile")
    yield "an icon", samples.image(8, 8)


def test_unusual_pictures_are_admitted(api: ApiServer) -> None:
    services = api.services
    for name, data in unusual():
        body = {"model": "upscale", **picture(data)}
        admitted = admit(
            parse(body, services.settings),
            services.pipelines,
            services.settings,
            services.renderers,
            wall=services.wall,
        )
        assert len(admitted.unstored) == 1, name
