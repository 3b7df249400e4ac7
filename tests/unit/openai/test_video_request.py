"""What becomes of what a client of videos sends: the request of its job."""

from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import model_validator

from omni_jobs.errors import InvalidRequest, NotFound
from omni_jobs.http.form_reader import Form
from omni_jobs.openai.client_names import rename
from omni_jobs.openai.videos.request import VIDEO_FORM, asked_video
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.requests import JobRequest, Upload
from omni_jobs.requests.options import parameters_of
from tests.unit.openai.test_video import REMOTE

PIPELINES = Pipelines([*load_pipelines(Path(__file__).parents[3] / "stage_configs").values(), REMOTE])
PNG = b"\x89PNG\r\n\x1a\n"


def video(model: str = "echo_media", **more: Any) -> JobRequest:
    [request] = asked_video({"model": model, "prompt": "a boat", **more}, PIPELINES).requests
    return request


def test_a_prompt_alone_is_a_job_that_makes_a_video() -> None:
    request = video()
    assert request.modalities == ["video"]
    assert request.model_dump()["messages"][0]["content"] == [{"type": "text", "text": "a boat"}]
    assert (request.stages, request.seed) == ({}, None)


@pytest.mark.parametrize(
    ("model", "more", "stages"),
    [
        ("echo_media", {"size": "832x480", "seconds": "4"}, {"video": {"width": 832, "height": 480, "seconds": 4}}),
        ("echo_media", {"seconds": "2.5"}, {"video": {"seconds": 2.5}}),
        ("echo_media", {"seconds": 2}, {"video": {"seconds": 2}}),
        ("echo_media", {"num_inference_steps": 3, "fps": 6}, {"video": {"steps": 3, "fps": 6}}),
        ("echo_media", {"extra_params": {"delay_s": 1.5}}, {"video": {"delay_s": 1.5}}),
        ("echo_media", {"stages": {"video": {"fps": 6}}, "fps": 6}, {"video": {"fps": 6}}),
        ("filmed", {"size": "832x480", "seconds": "4"}, {"film": {"size": "832x480", "seconds": 4}}),
        (
            "filmed",
            {"negative_prompt": "fog", "num_inference_steps": 8, "guidance_scale": 5.5, "num_frames": 81},
            {
                "film": {
                    "negative_prompt": "fog",
                    "num_inference_steps": 8,
                    "guidance_scale": 5.5,
                    "num_frames": 81,
                }
            },
        ),
    ],
)
def test_each_parameter_goes_to_the_stages_that_have_it(
    model: str, more: dict[str, Any], stages: dict[str, Any]
) -> None:
    assert video(model, **more).stages == stages


@pytest.mark.parametrize(
    ("model", "more", "field"),
    [
        ("filmed", {"flow_shift": 3.0}, "flow_shift"),
        ("filmed", {"extra_params": {"voice": "nova"}}, "extra_params.voice"),
        ("filmed", {"extra_params": {"speed": 1.0}}, "extra_params.speed"),  # of another endpoint
        ("echo_media", {"guidance_scale_2": 1.0}, "guidance_scale_2"),
        ("echo_media", {"boundary_ratio": 0.9}, "boundary_ratio"),
        ("echo_media", {"true_cfg_scale": 0.9}, "true_cfg_scale"),
        ("echo_media", {"size": 832}, "size"),
        ("echo_media", {"size": "832X480"}, "size"),
        ("echo_media", {"extra_params": []}, "extra_params"),
        ("echo_media", {"stages": []}, "stages"),
        ("echo_media", {"stages": {"video": 7}, "fps": 6}, "stages.video"),
        ("echo_media", {"stages": {"video": {"fps": 5}}, "fps": 6}, "fps"),
        ("echo_media", {"seed": -1}, "seed"),
        ("echo_media", {"prompt": None}, "prompt"),
        ("echo_media", {"input_reference": {}}, "input_reference"),
        ("echo", {}, "model"),
    ],
)
def test_what_has_another_form_is_refused(model: str, more: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        video(model, **more)
    assert caught.value.field == field


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(NotFound):
        video("sora-2")


def form(texts: dict[str, list[str]], **files: list[bytes]) -> Form:
    return Form(texts, {name: [memoryview(each) for each in several] for name, several in files.items()})


def test_a_form_says_what_json_says() -> None:
    texts = {"prompt": ["7"], "seconds": ["4"], "seed": ["12"], "guidance_scale": ["-1.5"], "extra_params[a]": ["1"]}
    sent = VIDEO_FORM.fields_of(form({**texts, "stages": ['{"b": {}}']}, input_reference=[PNG]))
    reference = sent.pop("input_reference")
    assert sent == {
        "prompt": "7",
        "seconds": "4",
        "seed": 12,
        "guidance_scale": -1.5,
        "extra_params": {"a": 1},
        "stages": {"b": {}},
    }
    assert (type(reference), bytes(reference.data)) == (Upload, PNG)


@pytest.mark.parametrize(
    ("texts", "files", "field"),
    [
        ({"prompt": ["a", "b"]}, {}, "prompt"),
        ({"extra_params": ["{"]}, {}, "extra_params"),
        ({"extra_params": ["{}"], "extra_params[a]": ["1"]}, {}, "extra_params"),
        ({"stages": ['{"a": NaN}']}, {}, "stages"),
        ({}, {"input_reference": [PNG, PNG]}, "input_reference"),
        ({"input_reference": ["x"]}, {"input_reference": [PNG]}, "input_reference"),
    ],
)
def test_a_wrong_form_is_refused(texts: dict[str, list[str]], files: dict[str, list[bytes]], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        VIDEO_FORM.fields_of(form(texts, **files))
    assert caught.value.field == field


def test_an_error_of_the_job_names_what_was_sent() -> None:
    name_of = asked_video(
        {"model": "echo_media", "prompt": "x", "size": "832x480", "extra_params": {"steps": 3}}, PIPELINES
    ).name_of
    found = {}
    for field in (
        "stages.video.width",
        "stages.video.steps",
        "messages.0.content.1.text",
        "messages.0.content.image_url",  # a picture is missing
        "modalities.0",
        "seed",
    ):
        error = InvalidRequest("wrong", field=field)
        rename(error, name_of)
        found[field] = error.field
    assert list(found.values()) == [
        "size",
        "extra_params.steps",
        "prompt",
        "input_reference",
        "model",
        "seed",
    ]


def test_sides_that_suit_each_other_are_taken_whatever_the_defaults_are(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = PIPELINES.named("echo_media").stage("video")

    class Upright(stage.parameters_type):  # type: ignore[misc, name-defined]  # mypy follows no property
        @model_validator(mode="after")
        def _check_sides(self) -> Self:
            if self.width >= self.height:
                raise ValueError("wider than high")
            return self

    monkeypatch.setitem(stage.__dict__, "parameters_type", Upright)
    monkeypatch.setitem(stage.__dict__, "parameters", {**stage.parameters, "width": 64, "height": 96})
    assert video(size="480x832").stages == {"video": {"width": 480, "height": 832}}
    with pytest.raises(InvalidRequest, match="wider than high"):
        parameters_of(video(size="832x480"), PIPELINES.named("echo_media"), [stage])
