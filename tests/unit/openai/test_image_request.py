"""What becomes of pictures that are asked for: the requests of their jobs, and the parameters of stages."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.http.form_reader import Form
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.client_names import rename
from omni_jobs.openai.images.request import EDIT_FORM, WantedPictures, asked_edit, asked_generation
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.requests import JobRequest, Upload, request_digest
from omni_jobs.tenants.caller import ANYONE

REMOTE = """
name: remote_picture
version: "1"
accepts: [text, image]
stages:
  describe:
    kind: remote
    processor: remote_text
    produces: text
    engine: {server: local, model: m, endpoint: chat}
  draw:
    kind: remote
    processor: remote_text
    inputs: {describe: text}
    produces: pixels
    engine: {server: local, model: m, endpoint: images}
    parameters: {size: 512x512}
outputs:
  image: {stage: draw}
"""
OURS = load_pipelines(Path(__file__).parents[3] / "stage_configs")
_REMOTE = Pipeline.model_validate(
    {**(config := yaml.safe_load(REMOTE)), "stages": {n: {**s, "name": n} for n, s in config["stages"].items()}}
)
PIPELINES = Pipelines([*OURS.values(), _REMOTE])
PICTURE = memoryview(b"picture")


def drawn(model: str = "qwen_image", **more: Any) -> AskedJobs[WantedPictures]:
    return asked_generation({"model": model, "prompt": "a boat", **more}, PIPELINES)


def stages(**more: Any) -> dict[str, dict[str, Any]]:
    [request] = drawn(**more).requests
    assert request.stages is not None
    return request.stages


def edited(model: str = "qwen_image_edit", **more: Any) -> AskedJobs[WantedPictures]:
    return asked_edit({"model": model, "prompt": "blue", "image": [Upload(PICTURE)], **more}, PIPELINES)


def test_a_picture_is_a_job_of_its_own() -> None:
    request = drawn(n=2, seed=5, output_format="webp", stream=True, partial_images=2)
    assert tuple(request.requests) == tuple(
        JobRequest.parse(
            {
                "model": "qwen_image",
                "messages": [{"role": "user", "content": "a boat"}],
                "modalities": ["image"],
                "image": {"format": "webp"},
                "stages": {},
                "seed": seed,
                "previews": True,
            }
        )
        for seed in (5, 6)
    )
    assert drawn().requests[0].previews is False
    assert drawn().requests[0].seed is None


def test_pictures_to_edit_stand_before_the_prompt() -> None:
    sources = [Upload(PICTURE), Upload(memoryview(b"other"))]
    [request] = edited(image=sources).requests
    assert request.messages is not None
    content: Any = request.messages[0].content
    assert [part.image_url.url for part in content[:2]] == sources
    assert content[2].text == "blue"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"size": "1024x768"}, {"denoise": {"width": 1024, "height": 768}}),
        ({"num_inference_steps": 9, "true_cfg_scale": 2}, {"denoise": {"steps": 9, "true_cfg_scale": 2}}),
        ({"negative_prompt": "people"}, {"encode": {"negative_prompt": "people"}}),
        ({"size": "auto", "stages": {"denoise": {"steps": 4}}}, {"denoise": {"steps": 4}}),
        ({"num_inference_steps": 4, "stages": {"denoise": {"steps": 4}}}, {"denoise": {"steps": 4}}),
        ({"model": "glm_image", "size": "64x96"}, {"generate": {"width": 64, "height": 96}}),
        ({"model": "glm_image", "guidance_scale": 3.0}, {"denoise": {"guidance_scale": 3.0}}),
        ({"model": "remote_picture", "size": "64x96"}, {"draw": {"size": "64x96"}}),
        (
            {"model": "remote_picture", "num_inference_steps": 9, "negative_prompt": "people", "quality": "low"},
            {"draw": {"num_inference_steps": 9, "negative_prompt": "people", "quality": "low"}},
        ),
        (
            {"model": "remote_picture", "background": "transparent", "style": "vivid", "output_compression": 9},
            {"draw": {"background": "transparent", "style": "vivid", "output_compression": 9}},
        ),
        ({"model": "echo_media", "size": "64x96"}, {"picture": {"width": 64, "height": 96}}),
    ],
)
def test_a_parameter_is_that_of_the_stages_that_have_it(
    more: dict[str, Any], expected: dict[str, dict[str, Any]]
) -> None:
    assert stages(**more) == expected


def test_what_no_stage_has_is_ignored_or_refused() -> None:
    assert drawn(quality="low", style="vivid", background="auto").ignored == ["quality", "background", "style"]
    for more in ({"guidance_scale": 3}, {"background": "transparent"}, {"model": "upscale", "size": "8x8"}):
        with pytest.raises(InvalidRequest) as caught:
            drawn(**more)
        assert caught.value.field == next(name for name in more if name != "model")


@pytest.mark.parametrize(
    ("model", "draws", "edits"),
    [
        ("qwen_image", True, False),
        ("qwen_image_edit", True, True),
        ("glm_image", True, True),
        ("upscale", True, True),
        ("chat", False, False),
        ("speech", False, False),
    ],
)
def test_which_pipelines_serve(model: str, draws: bool, edits: bool) -> None:
    for asked, serves in ((drawn, draws), (edited, edits)):
        if serves:
            assert asked(model).requests
            continue
        with pytest.raises(InvalidRequest, match="does not make image of") as caught:
            asked(model)
        assert caught.value.field == "model"


@pytest.mark.parametrize(
    ("sources", "field", "name"),
    [
        (1, "messages.0.content.0.image_url.url", "image"),
        (12, "messages.0.content.1", "image.1"),
        (12, "messages.0.content.11.image_url.url", "image.11"),
        (2, "messages.0.content.2.text", "prompt"),
        (2, "messages", "prompt"),
        (2, "stages.denoise.height", "size"),
        (2, "stages.denoise.steps", "num_inference_steps"),
        (2, "stages.encode.negative_prompt", "stages.encode.negative_prompt"),
        (2, "image.format", "output_format"),
        (2, "modalities.0", "model"),
        (2, None, None),
    ],
)
def test_an_error_names_the_client_s_field(sources: int, field: str | None, name: str | None) -> None:
    own = {"encode": {"negative_prompt": "x"}}
    asked = edited(image=[Upload(PICTURE)] * sources, size="64x64", num_inference_steps=3, stages=own)
    error = InvalidRequest("no", field=field)
    rename(error, asked.name_of)
    assert error.field == name


def test_how_an_answer_is_sent_is_no_part_of_what_was_sent() -> None:
    body = {"model": "qwen_image", "prompt": "a boat", "n": 2, "response_format": "b64_json"}
    request = asked_generation(body | {"stream": True, "partial_images": 1}, PIPELINES)
    sent = request.submissions(body | {"stream": True, "partial_images": 1}, 99, ANYONE, "key")
    assert [each.idempotency_key for each in sent] == ["key", "key#1"]
    assert {each.digest for each in sent} == {request_digest({"model": "qwen_image", "prompt": "a boat", "n": 2})}
    assert {each.size for each in sent} == {99}


def form(files: dict[str, list[memoryview]] | None = None, **texts: list[str]) -> Form:
    return Form(texts, files or {})


def test_a_form_is_read_as_json() -> None:
    texts = {
        "prompt": ["12"], "n": ["2"], "seed": ["-1"], "stream": ["true"], "true_cfg_scale": ["1.5"],
        "guidance_scale": ["1e2"], "partial_images": ["many"], "size": ["auto"], "stages[a][b]": ["0.5"],
        "stages[a][c]": ["x"], "user": ["true"],
    }  # fmt: skip
    assert EDIT_FORM.fields_of(form({"image": [PICTURE, PICTURE]}, **texts)) == {
        "prompt": "12",
        "n": 2,
        "seed": -1,
        "stream": True,
        "true_cfg_scale": 1.5,
        "guidance_scale": 100.0,
        "partial_images": "many",
        "size": "auto",
        "stages": {"a": {"b": 0.5, "c": "x"}},
        "user": "true",
        "image": [Upload(PICTURE), Upload(PICTURE)],
    }
    assert EDIT_FORM.fields_of(form(stages=['{"a": {"b": 1}}']))["stages"] == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("texts", "files", "field"),
    [
        ({"n": ["1", "1"]}, {}, "n"),
        ({"image": ["x"]}, {"image": [PICTURE]}, "image"),
        ({"stages": ["[1]"]}, {}, "stages"),
        ({"stages": ["[" * 10_000]}, {}, "stages"),
        ({"stages": ["{}"], "stages[a][b]": ["1"]}, {}, "stages"),
    ],
)
def test_a_bad_form_is_named(texts: dict[str, list[str]], files: dict[str, list[memoryview]], field: str) -> None:
    with pytest.raises((InvalidRequest, RequestTooLarge)) as caught:
        EDIT_FORM.fields_of(Form(texts, files))
    assert caught.value.field == field
