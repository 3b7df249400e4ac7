"""What docs/api.md shows of forks must be so: its fork is taken of its job, and a fork repeats what is not changed."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.new_job import NewJob, Origin
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.requests import admit, admit_fork, parse, parse_fork, submission_of
from omni_jobs.settings import Settings
from tests.docs.pages import ROOT, page
from tests.stage_configs import write_stage_configs

BODIES = [json.loads(body) for body in re.findall(r"-d '(\{.*?\})'", page("api.md"), re.DOTALL)]
[FORK] = [body for body in BODIES if "from_stage" in body]
SUBMITS = [body for body in BODIES if "messages" in body]


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: Path, tiny_tool_caller: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    configs = write_stage_configs(
        tmp_path_factory.mktemp("forks") / "configs", "chat", {"llm": {"tool_parser": "hermes"}}
    )
    for name in ("qwen2_5_omni", "echo"):
        shutil.copy(ROOT / "stage_configs" / f"{name}.yaml", configs)
    return Settings(stage_configs=configs, models={"qwen2_5_omni": tiny_checkpoint, "chat": tiny_tool_caller})


@pytest.fixture(scope="module")
def pipelines(settings: Settings) -> Pipelines:
    return load_pipelines(settings.stage_configs)


def admitted(body: Mapping[str, Any], pipelines: Pipelines, settings: Settings) -> NewJob:
    return admit(parse(body, settings), pipelines, settings)


def forked(job: NewJob, body: Mapping[str, Any], pipelines: Pipelines, settings: Settings) -> NewJob:
    origin = Origin(
        job_id=job.job_id,
        pipeline=job.pipeline,
        pipeline_version=job.pipeline_version,
        request=json.loads(json.dumps(job.request)),  # as SQL keeps it
        media=(),
        metadata=job.metadata,
        seed=job.seed,
        priority=job.priority,
        cost=job.cost,
        keeps_payloads=job.keeps_payloads,
        stored_bytes={stage.name: 1 for stage in job.stages},
    )
    fork = parse_fork(json.dumps(body).encode(), settings)
    return admit_fork(submission_of(fork, origin, pipelines), fork, origin, pipelines, settings)


def test_the_fork_is_taken(pipelines: Pipelines, settings: Settings) -> None:
    job = admitted(SUBMITS[0], pipelines, settings)
    fork = forked(job, FORK, pipelines, settings)
    assert fork.reuse is not None
    assert (fork.reuse.stages, fork.seed) == ({"thinker"}, 8)
    assert fork.request["audio"] == {**job.request["audio"], **FORK["audio"]}
    thinker = job.request["parameters"]["thinker"]
    assert fork.request["parameters"] == {"thinker": thinker, "talker": {"temperature": 0.5}}


@pytest.mark.parametrize("number", range(len(SUBMITS)))
def test_a_fork_asks_for_what_its_job_did(pipelines: Pipelines, settings: Settings, number: int) -> None:
    job = admitted(SUBMITS[number], pipelines, settings)
    fork = forked(job, {"from_stage": job.stages[-1].name}, pipelines, settings)
    same = ("pipeline", "pipeline_version", "request", "modalities", "stages", "seed", "priority", "metadata")
    assert {name: getattr(fork, name) for name in same} == {name: getattr(job, name) for name in same}


def test_what_a_stage_did_not_make_is_not_taken_over(pipelines: Pipelines, settings: Settings) -> None:
    job = admitted({**SUBMITS[0], "modalities": ["audio"], "max_tokens": None}, pipelines, settings)
    with pytest.raises(InvalidRequest, match=r"stage thinker did not make it .* fork from stage thinker") as refused:
        forked(job, {"from_stage": "talker", "modalities": ["audio", "text"]}, pipelines, settings)
    assert refused.value.field == "modalities.1"
    assert forked(job, {"from_stage": "thinker", "modalities": ["audio", "text"]}, pipelines, settings)
