"""What docs/pictures.md shows must be so: its request, its defaults and its bounds."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from workers.models.qwen_image.denoiser import _MAX_BATCH_COST
from workers.models.qwen_image.parameters import MAX_SIDE, MULTIPLE, PATCH
from workers.models.qwen_image.template import MAX_EDIT_TOKENS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
PIPELINES = load_pipelines(ROOT / "stage_configs")


def test_the_request_is_taken(tiny_qwen_images: Callable[[int], Path]) -> None:
    (body,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    settings = Settings(models={"qwen_image": tiny_qwen_images(0)})
    admit(parse(json.loads(body), settings), PIPELINES, settings)


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("encode", "negative_prompt"),
        *(("denoise", name) for name in ("steps", "true_cfg_scale", "width", "height")),
    ],
)
def test_defaults_are_the_stage_configs(stage: str, name: str) -> None:
    (default,) = re.findall(rf"^\|[^|]*`{stage}\.{name}`[^|]*\| `?(.*?)`? \|", PAGE, re.MULTILINE)
    config = PIPELINES.named("qwen_image").stage(stage)
    assert getattr(config.parameters_with({}), name) == json.loads(default)


def test_defaults_of_edits_are_the_stage_configs() -> None:
    pipeline = PIPELINES.named("qwen_image_edit")
    sources, denoise = (pipeline.stage(name).parameters_with({}) for name in ("sources", "denoise"))
    assert (getattr(denoise, "width", 0), getattr(denoise, "height", 0)) == (None, None)
    assert f"`sources.pixels`, {getattr(sources, 'pixels', None)} by default and {MULTIPLE**2} at least" in PAGE
    assert f"at most {MAX_EDIT_TOKENS:,} tokens" in PAGE
    for name in ("steps", "true_cfg_scale"):
        drawn = PIPELINES.named("qwen_image").stage("denoise").parameters_with({})
        assert getattr(denoise, name) == getattr(drawn, name)


def test_bounds_are_the_codes() -> None:
    assert f"multiples of {PATCH} from {PATCH} to {MAX_SIDE}" in PAGE
    assert "{:,} on a CPU and {:,} on a GPU".format(*_MAX_BATCH_COST.values()) in PAGE
