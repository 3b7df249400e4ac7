"""What the views read of a client's parameters, one value at a time. Each names the parameter that is wrong."""

from collections.abc import Mapping
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline


def pipeline_of(asked: Mapping[str, Any], pipelines: Pipelines, *, takes: str, makes: str) -> Pipeline:
    """Return the pipeline that ``model`` names. Raises InvalidRequest unless it takes and makes these, and NotFound."""
    pipeline = pipelines.named(text_in(asked, "model"))
    if takes not in pipeline.accepts or makes not in pipeline.outputs:
        raise InvalidRequest(f"pipeline {pipeline.name} does not make {makes} of {takes}", field="model")
    return pipeline


def text_in(asked: Mapping[str, Any], name: str) -> str:
    """Return the parameter. Raises InvalidRequest unless it is given, and a text."""
    text = asked.get(name)
    if not isinstance(text, str):
        raise InvalidRequest("is required" if text is None else "must be a string", field=name)
    return text


def flag(asked: Mapping[str, Any], name: str, prefix: str = "") -> bool:
    """Return whether the parameter is true; it need not be given. ``prefix``: where it stands, for the error.

    Raises InvalidRequest for what is neither true nor false.
    """
    value = asked.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest("must be true or false", field=f"{prefix}{name}")
    return value is True


def one_of(asked: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    """Return the parameter, or the first of ``known`` if there is none. Raises InvalidRequest for any other value."""
    value = asked.get(name, known[0])
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(f"must be one of {', '.join(known)}", field=name)
    return value


def voice_of(voice: Any) -> Any:
    """Return a voice as a job has it: its name, which may stand in an object as its ``id``."""
    return voice["id"] if isinstance(voice, Mapping) and set(voice) == {"id"} else voice


def own_stages(asked: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the parameters by stage that a client wrote so itself. Raises InvalidRequest for another form."""
    stages = asked.get("stages", {})
    if not isinstance(stages, Mapping):
        raise InvalidRequest("must be an object", field="stages")
    for name, values in stages.items():
        if not isinstance(values, Mapping):
            raise InvalidRequest("must be an object", field=f"stages.{name:.64}")
    return stages


def with_parameters(stages: Any, stage: str, named: Mapping[str, Any]) -> Any:
    """Return parameters by stage with those of one stage that stand in the body under names of their own.

    ``stages``: as they were sent, of any form; None: they were not. Raises InvalidRequest for a parameter that is given
    twice, and not the same.
    """
    if not named or not isinstance(stages, Mapping | None):
        return stages
    given = (stages or {}).get(stage, {})
    if not isinstance(given, Mapping):
        return stages
    for name, value in named.items():
        if given.get(name, value) != value:
            raise InvalidRequest(f"given twice, and not the same: see stages.{stage}.{name}", field=name)
    return {**(stages or {}), stage: {**given, **named}}
