"""``submit --size``: which stages get the width and the height, and when it is refused."""

from typing import Any

import pytest
import typer

from omni_jobs.cli.submit import picture_size, stages_of_size
from omni_jobs.views import OutputView, PipelineView, StageView

SIZE = {"width": 640, "height": 480}
SIDES = {"width": 1024, "height": 1024, "steps": 50}


def stage(name: str, inputs: list[str], parameters: dict[str, Any]) -> StageView:
    return StageView(name=name, kind="any", inputs=dict.fromkeys(inputs, "latents"), parameters=parameters)


def made(modality: str, by: str) -> OutputView:
    return OutputView(modality=modality, stage=by, flow="any", formats=[])


PICTURES = PipelineView(
    name="pictures",
    label="pictures",
    version="1",
    digest="0123456789abcdef",
    description="",
    accepts=["text"],
    modalities=["image", "caption"],
    outputs=[made("image", "decode"), made("caption", "read")],
    voices=[],
    stages=[
        stage("encode", [], {"max_tokens": 8}),
        stage("prepare", ["encode"], SIDES),
        stage("denoise", ["encode", "prepare"], SIDES),
        stage("decode", ["denoise"], {}),
        stage("read", ["encode"], {"width": 8}),
        stage("poster", [], SIDES),
    ],
    trouble=None,
)


@pytest.mark.parametrize(
    ("text", "size"), [("1024x768", (1024, 768)), ("1X2", (1, 2)), ("7×9", (7, 9)), ("0x0", (0, 0))]
)
def test_a_size_is_two_numbers(text: str, size: tuple[int, int]) -> None:
    assert tuple(picture_size(text).values()) == size  # whether the model takes it, the server says


@pytest.mark.parametrize(
    "text", ["", "1024", "x", "1024x", "1024x768x3", "-1x5", "1.5x2", "1024 x 768", "１x２", "9" * 10 + "x1"]
)
def test_another_text_is_no_size(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not WIDTHxHEIGHT") as caught:
        picture_size(text)
    assert caught.value.param_hint == "--size"


def test_the_stages_of_the_job_that_have_both_sides_get_them() -> None:
    request = {"modalities": ["image"], "stages": {"denoise": {"steps": 4, "width": 640}, "decode": {}}}
    for modalities in ({"modalities": ["image"]}, {}):  # an image is this pipeline's first output
        stages = stages_of_size(SIZE, {**modalities, "stages": request["stages"]}, PICTURES)
        assert stages == {"prepare": SIZE, "denoise": {"steps": 4, **SIZE}, "decode": {}}
    assert request["stages"] == {"denoise": {"steps": 4, "width": 640}, "decode": {}}


def test_a_job_without_such_a_stage_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="no stage of pictures that makes caption has a width and a height"):
        stages_of_size(SIZE, {"modalities": ["caption"]}, PICTURES)


def test_another_size_among_the_parameters_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match=r"--param sets another denoise\.height"):
        stages_of_size(SIZE, {"stages": {"denoise": {"height": 481}}}, PICTURES)
