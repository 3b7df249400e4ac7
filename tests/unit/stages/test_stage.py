"""What a stage asks of its runner."""

from pathlib import Path

import pytest

from omni_jobs.pipelines.loader import load_pipelines
from workers.stages.stage import Stage

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
