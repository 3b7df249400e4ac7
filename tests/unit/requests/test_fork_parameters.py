"""The parameters of a fork are its job's with the changes; of two lengths of a video the one that is changed counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.identity import PipelineId
from omni_jobs.new_job import Origin
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.priority import Priority
from omni_jobs.requests import parse_fork, submission_of
from omni_jobs.requests.options import parameters_of
from omni_jobs.settings import Settings
from tests.stage_configs import write_stage_configs


def of_fork(directory: Path, parameters: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return what a fork of a video's job sets for its denoising."""
    pipelines = load_pipelines(write_stage_configs(directory, "wan", {}))
    pipeline = pipelines.named("wan")
    origin = Origin(
        job_id="job-1",
        pipeline=PipelineId(pipeline.name, pipeline.digest),
        pipeline_version=pipeline.version,
        request={"modalities": ["video"], "parameters": {"denoise": parameters}},
        media=(),
        metadata={},
        seed=1,
        priority=Priority.NORMAL,
        cost=1.0,
        keeps_payloads=True,
        stored_bytes={},
    )
    body = {"from_stage": "denoise", "stages": {"denoise": changes}}
    fork = parse_fork(json.dumps(body).encode(), Settings())
    request = submission_of(fork, origin, pipelines).request
    return parameters_of(request, pipeline, pipeline.stages_for(["video"]))["denoise"]


@pytest.mark.parametrize(
    ("parameters", "changes", "found"),
    [
        ({"num_frames": 33}, {"seconds": 2.0}, {"seconds": 2.0}),
        ({"seconds": 2.0}, {"num_frames": 33}, {"num_frames": 33}),
        ({"num_frames": 33}, {"seconds": None}, {"num_frames": 33, "seconds": None}),
        ({"num_frames": 33, "width": 64}, {"steps": 3}, {"num_frames": 33, "width": 64, "steps": 3}),
        ({"num_frames": 33, "seconds": 2.0}, {"steps": 3}, {"seconds": 2.0, "steps": 3}),  # of an earlier release
        ({"num_frames": 33, "seconds": 2.0}, {"num_frames": 49}, {"num_frames": 49}),
    ],
)
def test_a_fork_sets_one_length(
    tmp_path: Path, parameters: dict[str, Any], changes: dict[str, Any], found: dict[str, Any]
) -> None:
    assert of_fork(tmp_path / "configs", parameters, changes) == found


def test_a_fork_that_sets_both_lengths_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        of_fork(tmp_path / "configs", {"num_frames": 33}, {"num_frames": 33, "seconds": 2.0})
    assert refused.value.field == "stages.denoise.num_frames"
