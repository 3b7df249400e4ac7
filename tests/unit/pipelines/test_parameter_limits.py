"""Limits of a stage config: they only narrow, a job beyond one is refused with its field, and messages keep them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.errors import ConfigError, InvalidRequest, RequestTooLarge
from omni_jobs.pipelines.loader import Pipelines, load_pipeline
from omni_jobs.pipelines.parameter_limits import Limit, beyond, own_bounds
from omni_jobs.prompts.renderers import Renderers
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from tests.oracles import samples
from workers.models.glm_image.parameters import GenerateParameters
from workers.models.pictures.sides import Sides
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen_image.parameters import SIDES, DrawParameters
from workers.runners.ar.parameters import ArParameters

CONFIGS = Path(__file__).parents[3] / "stage_configs"


def limited(directory: Path, name: str, stage: str, limits: str, parameters: str | None = None) -> Path:
    """A shipped pipeline file with ``limits`` for one stage; ``parameters`` replace its own."""
    text = (CONFIGS / f"{name}.yaml").read_text()
    if parameters is not None:
        text = re.sub(
            rf"(?s)(\n  {stage}:\n.*?)    parameters:\n(      [^\n]*\n)*",
            rf"\1    parameters: {parameters}\n",
            text,
            count=1,
        )
    text = text.replace(f"\n  {stage}:\n", f"\n  {stage}:\n    limits: {limits}\n", 1)
    path = directory / f"{name}.yaml"
    path.write_text(text)
    return path


# The file


@pytest.mark.parametrize(
    ("limits", "field", "message"),
    [
        ("{pace: {at_most: 60}}", ".pace", "no number of this name; known: steps, true_cfg_scale, width, height"),
        ("{steps: {at_most: 201}}", ".steps", "only narrows, so at_most must be at least 1 and at most 200"),
        ("{steps: {at_most: 0}}", ".steps", "only narrows, so at_most must be"),
        ("{steps: {at_least: 0}}", ".steps", "only narrows, so at_least must be"),
        ("{steps: {at_most: 60.5}}", ".steps", "at_most must be a whole number, not 60.5"),
        ("{steps: {at_most: 49}}", ".steps", "the default of steps must be at least 1 and at most 49: set another"),
        ("{steps: {at_most: '60'}}", ".steps.at_most", "valid"),
        ("{steps: {at_most: .nan}}", ".steps.at_most", "finite"),
        ("{steps: {most: 60}}", ".steps.most", "unknown key"),
        ("{steps: {}}", ".steps", "needs at_least, at_most or both"),
        ("{steps: {at_least: 60, at_most: 50}}", ".steps", "at_least is more than at_most"),
        ("{steps: 60}", ".steps", "valid"),
        ("{width: {at_most: 1500}}", ".width", "at_most must be a multiple of 16, not 1500"),
        ("{width: {at_most: 4096}}", ".width", "a multiple of 16, at least 16 and at most 2048"),
        ("{width: {at_most: 1024}}", ".width", "the default of width must be a multiple of 16, at least 16 and at mo"),
        (
            "{pixels: {at_most: 1000000}}",
            ".pixels",
            "by default width x height are 1763584 pixels, which must be at least 1 and at",
        ),
        ("{input_pixels: {at_most: 9}}", ".input_pixels", "no number of this name"),
    ],
)
def test_a_wrong_limit_is_refused_with_line_and_field(tmp_path: Path, limits: str, field: str, message: str) -> None:
    path = limited(tmp_path, "qwen_image", "denoise", limits)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_pipeline(path)
    assert caught.value.field == f"stages.denoise.limits{field}"
    line = path.read_text().splitlines()[(caught.value.line or 0) - 1]
    assert line.lstrip().startswith("limits:")


def test_input_pixels_need_a_pipeline_that_accepts_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the pipeline accepts no image"):
        load_pipeline(limited(tmp_path, "qwen_image", "encode", "{input_pixels: {at_most: 9}}"))


def test_the_bounds_are_those_of_the_class_within_the_limits(tmp_path: Path) -> None:
    limits = "{steps: {at_most: 60}, width: {at_least: 512, at_most: 1536}, true_cfg_scale: {at_most: 7.5}}"
    bounds = load_pipeline(limited(tmp_path, "qwen_image", "denoise", limits)).stage("denoise").bounds
    assert {name: each.to_dict() for name, each in bounds.items()} == {
        "steps": {"at_least": 1, "at_most": 60},
        "true_cfg_scale": {"at_least": 1, "at_most": 7.5},
        "width": {"at_least": 512, "at_most": 1536, "multiple_of": 16},
        "height": {"at_least": 16, "at_most": 2048, "multiple_of": 16},
        "pixels": {"at_least": 1},
    }


NUMBERS = [
    (kind, name)
    for kind in (ArParameters, OdeParameters, DrawParameters, GenerateParameters)
    for name, bounds in own_bounds(kind).items()
    if name in kind.model_fields and bounds.multiple_of is None
]


@given(number=st.sampled_from(NUMBERS), data=st.data())
def test_what_a_limit_lets_pass_the_class_does_too(number: tuple[Any, str], data: st.DataObject) -> None:
    """And what a class refuses, no limit of it lets pass."""
    kind, name = number
    own = own_bounds(kind)[name]
    assert own.at_most is not None
    value = data.draw(st.integers(-5, 10**7) if own.is_whole else st.floats(-30, 30, allow_nan=False))
    at_most = data.draw(st.sampled_from([own.at_most, (own.at_most + (own.at_least or 0)) // 2 or own.at_most]))
    narrow = own.narrowed(Limit(at_most=at_most))
    passes = beyond({name: narrow}, {name: value}) is None
    assert passes == (beyond({name: own}, {name: value}) is None and value <= at_most)
    if passes and name != "min_tokens":
        others = {"logprobs": True} if name == "top_logprobs" else {}
        assert getattr(kind.model_validate({name: value} | others), name) == value


@given(pixels=st.integers(-100, 2200), low=st.integers(1, 60), high=st.integers(60, 128))
def test_the_nearest_sizes_keep_the_limit(pixels: int, low: int, high: int) -> None:
    bounds = own_bounds(DrawParameters)["width"].narrowed(Limit(at_least=16 * low, at_most=16 * high))
    found = bounds.problem(pixels)
    if found is None:  # the class says the rest
        assert 16 * low <= pixels <= 16 * high
        try:
            SIDES.check(pixels)
        except ValueError as error:
            found = str(error)
        else:
            return
    nearest = [int(each) for each in re.findall(r"\d+", found.partition("; the nearest ")[2])]
    within = Sides(16, 16 * low, 16 * high)
    assert nearest
    assert all(each in within for each in nearest)


# The request


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    """Qwen-Image, upscale and a chat with limits."""
    directory = tmp_path_factory.mktemp("narrow")
    limits = "{steps: {at_most: 60}, width: {at_least: 512, at_most: 1536}, pixels: {at_most: 1048576}}"
    defaults = "{steps: 50, width: 1024, height: 1024}"
    files = [
        limited(directory, "qwen_image", "denoise", limits, defaults),
        limited(directory, "upscale", "enlarge", "{input_pixels: {at_least: 1024, at_most: 2048}}"),
        limited(directory, "chat", "llm", "{max_tokens: {at_most: 2000}}"),
    ]
    return Pipelines(map(load_pipeline, files))


def said(text: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize(
    ("overrides", "name", "problem"),
    [
        ({"num_frames": 85}, "num_frames", "width x height x num_frames are 33945600 video_pixels"),
        ({"seconds": 10.0}, "seconds", "width x height x seconds are 64296960 video_pixels"),
    ],
)
def test_a_quantity_names_what_it_was_computed_of(
    tmp_path: Path, overrides: dict[str, Any], name: str, problem: str
) -> None:
    stage = load_pipeline(limited(tmp_path, "wan", "denoise", "{video_pixels: {at_most: 33000000}}")).stage("denoise")
    found = stage.beyond_limits(overrides)
    assert found is not None
    assert (found.parameter, found.problem.partition(",")[0]) == (name, problem)


@pytest.mark.parametrize(
    ("overrides", "frames", "problem"),
    [
        ({}, 33, None),
        ({"steps": 3}, 33, None),
        ({"num_frames": 49}, 49, None),
        ({"num_frames": 49, "seconds": None}, 49, None),
        ({"seconds": 1.0}, 17, None),
        ({"num_frames": 53}, 53, "num_frames are 53 frames, which must be at least 1 and at most 49"),
    ],
)
def test_of_two_lengths_that_of_the_job_counts(
    tmp_path: Path, overrides: dict[str, Any], frames: int, problem: str | None
) -> None:
    file = limited(tmp_path, "wan", "denoise", "{frames: {at_most: 49}}", "{seconds: 2.0, num_frames: 41}")
    stage = load_pipeline(file).stage("denoise")
    assert getattr(stage.parameters_with(overrides), "frames", 0) == frames
    found = stage.beyond_limits(overrides)
    assert (found and found.problem) == problem


@pytest.mark.parametrize(
    ("parameters", "name", "message"),
    [
        ({"steps": 61}, "steps", "must be at least 1 and at most 60 (a limit of this pipeline)"),
        ({"steps": 10_000}, "steps", "at most 60"),
        ({"steps": 0}, "steps", "at most 60"),
        ({"steps": 60.5}, "steps", "at most 60"),
        ({"steps": "61"}, "steps", "must be a valid integer"),
        ({"width": 1999}, "width", "the nearest is 1536 (a limit"),
        ({"width": 2048}, "width", "the nearest is 1536 (a limit"),
        ({"width": 16}, "width", "the nearest is 512 (a limit"),
        ({"width": 1530}, "width", "the nearest are 1520 and 1536"),
        ({"height": 10**6}, "height", "the nearest is 2048"),
        ({"height": 1040}, "height", "width x height are 1064960 pixels, which must be at least 1 and at most 1048576"),
        ({"width": 1536, "height": 1024}, "width", "are 1572864 pixels"),
        ({"true_cfg_scale": 30.0}, "true_cfg_scale", "less than or equal to 20"),
    ],
)
def test_a_job_beyond_a_limit_is_refused_with_its_field(
    narrow: Pipelines, tiny_qwen_images: Callable[[int], Path], parameters: dict[str, Any], name: str, message: str
) -> None:
    settings = Settings(models={"qwen_image": tiny_qwen_images(0)})
    with pytest.raises(InvalidRequest) as refused:
        admit(
            parse({"model": "qwen_image", **said("a boat"), "stages": {"denoise": parameters}}, settings),
            narrow,
            settings,
        )
    assert refused.value.field == f"stages.denoise.{name}"
    assert message in refused.value.message


def test_a_job_within_the_limits_is_admitted(narrow: Pipelines, tiny_qwen_images: Callable[[int], Path]) -> None:
    settings = Settings(models={"qwen_image": tiny_qwen_images(0)})
    renderers = Renderers(settings)
    for parameters in ({}, {"steps": 60}, {"width": 1536, "height": 640}, {"width": 512}):
        admit(
            parse({"model": "qwen_image", **said("a boat"), "stages": {"denoise": parameters}}, settings),
            narrow,
            settings,
            renderers,
        )


def test_a_parameter_at_the_requests_top_is_named_there(narrow: Pipelines) -> None:
    with pytest.raises(InvalidRequest, match="at most 2000") as refused:
        admit(parse({"model": "chat", **said("Hello"), "max_completion_tokens": 2001}, Settings()), narrow, Settings())
    assert refused.value.field == "max_completion_tokens"


@pytest.mark.parametrize(("size", "error"), [((64, 33), RequestTooLarge), ((30, 30), InvalidRequest), ((32, 32), None)])
def test_a_picture_beyond_a_limit_is_refused(narrow: Pipelines, size: tuple[int, int], error: Any) -> None:
    body = {"model": "upscale", **said([samples.image_part(samples.image(*size))])}
    if error is None:
        assert len(admit(parse(body, Settings()), narrow, Settings()).unstored) == 1
        return
    with pytest.raises(error) as refused:
        admit(parse(body, Settings()), narrow, Settings())
    assert type(refused.value) is error
    assert refused.value.field == "messages.0.content.0.image_url.url"
    assert "at least 1024 and at most 2048 (a limit of this pipeline)" in refused.value.message
