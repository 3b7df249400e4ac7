"""What docs/glm-image.md shows must be so: its request, its defaults and its bounds."""

import json
import re
from pathlib import Path

import pytest

from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from tests.services.checkpoint import TinyCheckpoints
from workers.models.glm_image.grids import LARGEST, MOST_SOURCES, PIXELS, SHORTEST, SMALLEST, grids_of
from workers.models.glm_image.prompts import MOST_BYTES, glyph_texts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glm-image.md").read_text(encoding="utf-8")
PIPELINES = load_pipelines(ROOT / "stage_configs")


def test_the_request_is_taken(tiny_glm_images: TinyCheckpoints) -> None:
    (body,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    request = json.loads(body)
    settings = Settings(models={"glm_image": tiny_glm_images(0)})
    admit(parse(request, settings), PIPELINES, settings)
    assert glyph_texts(request["messages"][0]["content"]) == ["Open until 8"]


@pytest.mark.parametrize(
    ("stage", "names"),
    [
        ("generate", ["width"]),
        ("generate", ["temperature"]),
        ("generate", ["top_p", "top_k"]),
        ("denoise", ["steps"]),
        ("denoise", ["guidance_scale"]),
    ],
)
def test_defaults_are_the_stage_configs(stage: str, names: list[str]) -> None:
    (default,) = re.findall(rf"^\| `{stage}\.{names[0]}`[^|]*\| (.*?) \|", PAGE, re.MULTILINE)
    parameters = PIPELINES.named("glm_image").stage(stage).parameters_with({})
    assert [getattr(parameters, name) for name in names] == json.loads(f"[{default}]")


def test_bounds_are_the_codes() -> None:
    assert f"multiples of {PIXELS} from {SMALLEST} to {LARGEST}" in PAGE
    assert f"more than {MOST_BYTES:,} bytes" in PAGE
    assert f"{PIPELINES.named('glm_image').stage('generate').engine['max_model_len']:,} tokens" in PAGE
    assert [grid.tokens for grid in grids_of(1024, 1024).written] == [256, 1024]
    assert f"more than {MOST_SOURCES} pictures" in PAGE
    assert f"a side of less than {SHORTEST} pixels" in PAGE
    assert re.findall(r"`(\W)Open(\W)`", PAGE) == [("'", "'"), ('"', '"'), ("“", "”"), ("「", "」")]
