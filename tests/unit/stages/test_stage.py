"""What a stage asks of its runner."""

from pathlib import Path

import numpy as np
import pytest

from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import Pipeline
from workers.stages.stage import Stage
from workers.stages.types import Artifact, OmniModelRunnerOutput, StageInput

PIPELINES = load_pipelines(Path(__file__).parents[3] / "stage_configs")


@pytest.mark.parametrize(
    ("pipeline", "name", "captures"),
    [("qwen2_5_omni", "thinker", True), ("qwen2_5_omni", "talker", False), ("echo", "first", True)],
)
def test_hidden_states_are_captured_only_where_they_are_what_is_handed_on(
    pipeline: str, name: str, captures: bool, tiny_checkpoint: Path
) -> None:
    found = PIPELINES[pipeline]
    stage = Stage(found, found.stage(name), tiny_checkpoint)
    for wanted in (True, False):
        stage_input = stage.input_of(job_id="job-1", request={}, media=[], upstream={}, seed=1, has_successors=wanted)
        assert stage_input.capture == (wanted and captures)


DRAWN = {
    "name": "drawn",
    "version": "1",
    "stages": {"draw": {"name": "draw", "kind": "echo", "processor": "echo", "produces": "bytes"}},
    "outputs": {"image": {"stage": "draw"}},
}


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
def test_a_picture_names_its_job_only_where_the_operator_wants_it(format: str) -> None:
    pipeline = Pipeline.model_validate(DRAWN)

    def drawn(**wanted: bool) -> bytes:
        stage = Stage(pipeline, pipeline.stage("draw"), None, **wanted)
        asked = {"modalities": ["image"], "image": {"format": format}}
        stage_input = StageInput("job-1234", asked, (), {}, StageParameters(), seed=7_654_321, capture=False)
        output = OmniModelRunnerOutput(multimodal_outputs={"pixels": np.zeros((8, 8, 3), np.uint8)})
        (artifact,) = stage.finish(output, stage_input).artifacts
        return bytes(artifact.data)

    plain, named = drawn(), drawn(job_ids_in_pictures=True)
    assert b"7654321" in plain
    assert b"7654321" in named
    assert b"job-1234" not in plain
    assert b"job-1234" in named


def test_an_artifact_does_not_print_its_bytes() -> None:
    assert repr(Artifact("a.wav", "audio/wav", b"RIFF" * 1000, "audio")) == (
        "Artifact(name='a.wav', media_type='audio/wav', modality='audio')"
    )
