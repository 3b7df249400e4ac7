"""What docs/operations/echo.md says of the pipeline echo_media must be so: parameters, defaults, bounds."""

import json
import re

import pytest

from omni_jobs.pipelines.loader import load_pipelines
from tests.docs.pages import ROOT, page
from workers.runners.echo.parameters import LEAST_SIDE, MOST_SIDE, MOST_SOUND_S
from workers.runners.echo.tone import VOICES

PAGE = page("operations/echo.md")
PIPELINE = load_pipelines(ROOT / "stage_configs").named("echo_media")
ROWS = re.findall(r"^\| ((?:`\w+\.\w+`(?:, )?)+) \| (.*?) \|", PAGE, re.MULTILINE)
SHOWN = [re.findall(r"`(\w+)\.(\w+)`", names) for names, _ in ROWS]


def test_each_parameter_has_its_place() -> None:
    named = sorted(each for names in SHOWN for each in names)
    there = [(stage.name, name) for stage in PIPELINE.stages.values() for name in stage.parameters_type.model_fields]
    assert named == sorted(there)


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_the_defaults_are_the_stage_configs(row: int) -> None:
    names, defaults = SHOWN[row], json.loads(f"[{ROWS[row][1]}]")
    for number, (stage, name) in enumerate(names):
        default = PIPELINE.stage(stage).parameters_with({}).model_dump(mode="json")[name]
        assert default == defaults[number if len(defaults) > 1 else 0]


def test_the_outputs_voices_and_bounds_are_the_pipelines() -> None:
    outputs = dict(re.findall(r"^\| (\w+) \| `(\w+)` \|", PAGE, re.MULTILINE))
    assert outputs == {modality: made.stage for modality, made in PIPELINE.outputs.items()}
    voices = {name: float(hertz) for name, hertz in re.findall(r"`(\w+)` \((\d+) Hz\)", PAGE)}
    assert voices == VOICES
    assert tuple(voices) == PIPELINE.voices
    assert f"{PIPELINE.stage('video').limits['video_pixels'].at_most:,} pixels" in PAGE
    assert PAGE.count(f"pixels, {LEAST_SIDE} to {MOST_SIDE}") == 2
    assert MOST_SOUND_S == 600
