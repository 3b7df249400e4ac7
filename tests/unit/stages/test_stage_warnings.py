"""A stage that stopped at its limit warns of what was cut."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.pipelines.loader import load_pipelines
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput

OMNI = load_pipelines(Path(__file__).parents[3] / "stage_configs")["qwen2_5_omni"]


def warned(
    checkpoint: Path, stage_name: str, output: OmniModelRunnerOutput, **parameters: Any
) -> Sequence[Mapping[str, str]]:
    stage = Stage(OMNI, OMNI.stage(stage_name), checkpoint)
    stage_input = stage.input_of(
        job_id="job-1",
        request={"parameters": {stage_name: parameters}},
        media=[],
        upstream={},
        seed=0,
        has_successors=False,
    )
    return stage.finish(output, stage_input).warnings


@pytest.mark.parametrize(
    ("stage", "tokens", "parameters", "message"),
    [
        ("talker", 4096, {}, "the talker stopped at its max_tokens of 4096: the speech is probably cut"),
        ("talker", 5, {"max_tokens": 5}, "the talker stopped at its max_tokens of 5: the speech is probably cut"),
        ("thinker", 5, {"max_tokens": 5}, "the thinker stopped at its max_tokens of 5: the text is probably cut"),
        ("thinker", 4, {"max_tokens": 5}, "the thinker stopped at the end of its context: the text is probably cut"),
    ],
)
def test_a_stage_that_stopped_at_its_limit_warns(
    tiny_checkpoint: Path, stage: str, tokens: int, parameters: dict[str, Any], message: str
) -> None:
    output = OmniModelRunnerOutput(token_ids=[1] * tokens, finish_reason="length")
    assert warned(tiny_checkpoint, stage, output, **parameters) == [{"code": "cut_short", "message": message}]


@pytest.mark.parametrize(("stage", "reason"), [("thinker", "stop"), ("talker", "stop"), ("code2wav", None)])
def test_a_stage_that_came_to_its_end_does_not(tiny_checkpoint: Path, stage: str, reason: str | None) -> None:
    output = OmniModelRunnerOutput(
        token_ids=[1] * 5000,
        finish_reason=reason,
        multimodal_outputs={"waveform": torch.zeros(4)} if stage == "code2wav" else {},
        values={"sampling_rate": 24_000},
    )
    assert warned(tiny_checkpoint, stage, output) == []


def test_a_runner_s_own_warnings_stand_before_it(tiny_checkpoint: Path) -> None:
    own = {"code": "left_out", "message": "one word"}
    assert warned(tiny_checkpoint, "talker", OmniModelRunnerOutput(warnings=[own])) == [own]
    output = OmniModelRunnerOutput(token_ids=[1] * 4096, finish_reason="length", warnings=[own])
    assert [each["code"] for each in warned(tiny_checkpoint, "talker", output)] == ["left_out", "cut_short"]
