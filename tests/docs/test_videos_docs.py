"""What docs/videos.md shows must be so: its request, its defaults and its bounds."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from tests.docs.pages import blocks
from tests.stage_configs import write_stage_configs
from workers.models.wan.denoiser import _MAX_BATCH_COST
from workers.models.wan.parameters import LEAST_FRAMES, MAX_SIDE, MOST_FRAMES, PATCH
from workers.models.wan.prompts import MAX_TEXT_TOKENS
from workers.models.wan.size import FilmSize

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "videos.md").read_text(encoding="utf-8")
PIPELINES = load_pipelines(ROOT / "stage_configs")


def test_the_request_is_taken(tiny_wans: Callable[[int], Path]) -> None:
    (body,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    settings = Settings(models={"wan": tiny_wans(0)})
    admit(parse(json.loads(body), settings), PIPELINES, settings)


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("encode", "negative_prompt"),
        ("decode", "fps"),
        *(
            ("denoise", name)
            for name in ("steps", "guidance_scale", "guidance_scale_2", "width", "height", "num_frames", "seconds")
        ),
    ],
)
def test_defaults_are_the_stage_configs(stage: str, name: str) -> None:
    (default,) = re.findall(rf"^\|[^|]*`{stage}\.{name}`[^|]*\| `?(.*?)`? \|", PAGE, re.MULTILINE)
    config = PIPELINES.named("wan").stage(stage)
    assert getattr(config.parameters_with({}), name) == json.loads(default)


def test_bounds_are_the_codes() -> None:
    assert f"a multiple of {PATCH} from {PATCH} to {MAX_SIDE}" in PAGE
    assert f"from {LEAST_FRAMES} to {MOST_FRAMES}" in PAGE
    assert f"at most {MAX_TEXT_TOKENS} tokens" in PAGE
    assert "{:,} on a CPU and {:,} on a GPU".format(*_MAX_BATCH_COST.values()) in PAGE
    tokens = FilmSize(81, 480, 832).tokens
    assert f"has {tokens:,} of them, {2 * tokens:,} with guidance" in PAGE


def test_defaults_of_videos_from_a_picture_are_the_stage_configs() -> None:
    pipeline = PIPELINES.named("wan_i2v")
    begin, denoise = (pipeline.stage(name).parameters_with({}) for name in ("begin", "denoise"))
    assert (getattr(begin, "width", 0), getattr(begin, "height", 0)) == (None, None)
    assert (getattr(denoise, "guidance_scale", 0), getattr(denoise, "guidance_scale_2", 0)) == (3.5, 3.5)


@pytest.mark.parametrize("name", ["wan", "wan_i2v"])
def test_the_interval_of_snapshots_is_taken_and_decides_no_result(name: str, tmp_path: Path) -> None:
    (block,) = (each for each in blocks(PAGE, "yaml") if "snapshot_every_s" in each)
    engine = yaml.safe_load(block)["stages"]["denoise"]["engine"]
    changed = load_pipelines(write_stage_configs(tmp_path / name, name, {"denoise": engine})).named(name)
    assert changed.stage("denoise").engine_settings.model_dump().items() >= engine.items()
    assert changed.digest == PIPELINES.named(name).digest


@pytest.mark.parametrize("name", ["wan", "wan_i2v"])
def test_the_other_settings_of_denoise_are_taken(name: str, tmp_path: Path) -> None:
    shown = [yaml.safe_load(each) for each in blocks(PAGE, "yaml")]
    engines = [each["engine"] for each in shown if "engine" in each]
    assert engines
    for number, engine in enumerate(engines):
        directory = write_stage_configs(tmp_path / f"{name}{number}", name, {"denoise": engine})
        stage = load_pipelines(directory).named(name).stage("denoise")
        assert stage.component_declaration is not None
        assert stage.engine_settings.asked_of_model
        asked = {each.rpartition(".")[2] for each in stage.engine_settings.asked_of_model}
        assert asked <= stage.component_declaration.takes
