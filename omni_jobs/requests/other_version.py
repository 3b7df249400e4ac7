"""``other_version``: on which stages of another version of its pipeline a job can go on."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from omni_jobs.errors import Conflict
from omni_jobs.new_job import NewStage, NewVersion, Origin
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig

_FIELD = "version"


def other_version(origin: Origin, pipelines: Pipelines, version: str) -> NewVersion:
    """Return the version of a job's pipeline, with what it can run of the job.

    A stage can go on there if it takes the same flows from the same stages, makes the same outputs, and takes the
    job's parameters. Raises NotFound for a version that is not here, VersionDraining for one that takes no new jobs,
    and Conflict where the job's own file is not here, because then nobody knows what its stages have handed on.
    """
    name = origin.pipeline.name
    new = pipelines.named(f"{name}@{version}", field=_FIELD)
    pipelines.check_takes_jobs(new)
    old = pipelines.of(origin.pipeline)
    if old is None:
        raise Conflict(
            f"the file of version {origin.pipeline_version} of {name} (digest {origin.pipeline.digest[:16]}) is not "
            "here, so nobody knows what the job's stages have handed on: put it beside the others",
            field=_FIELD,
        )
    outputs = origin.request["modalities"]
    lost = [each for each in outputs if each not in new.outputs or new.outputs[each].stage != old.outputs[each].stage]
    differs: dict[str, str] = {old.outputs[each].stage: f"does not make {each} in version {version}" for each in lost}
    stages: dict[str, NewStage] = {}
    for stage in old.stages_for(outputs):
        problem = _difference(stage, new, origin.request.get("parameters", {})) or differs.get(stage.name)
        if problem is not None:
            differs[stage.name] = problem
            continue
        its = new.stage(stage.name)
        stages[its.name] = NewStage(its.name, tuple(its.inputs), new.queue(its.name), its.retries, its.queue_limit_s)
    return NewVersion(new.id, new.version, stages, differs)


def _difference(stage: StageConfig, new: Pipeline, parameters: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return why a stage run cannot go on in the other version; None: it can."""
    if stage.name not in new.stages:
        return f"is not in version {new.version}"
    its = new.stages[stage.name]
    if dict(its.inputs) != dict(stage.inputs):
        return f"takes {_flows(stage)}, in version {new.version} {_flows(its)}"
    try:
        its.parameters_with(parameters.get(stage.name, {}))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"does not take the job's parameter {where} in version {new.version}: {first['msg']}"
    return None


def _flows(stage: StageConfig) -> str:
    return ", ".join(f"{flow} of {name}" for name, flow in stage.inputs.items()) or "the request"
