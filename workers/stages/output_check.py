"""``check_output``: what a runner gives is what an ``OmniModelRunnerOutput`` may hold, whoever wrote the runner.

An error here fails the stage run. Later it would fail the reports of all stage runs that are written with it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from omni_jobs.errors import ModelError
from workers.stages.types import Artifact, OmniModelRunnerOutput

_MOST_WARNINGS = 100
_MOST_CHARACTERS = 4000  # of a warning
_ARTIFACT = re.compile(r"[a-z0-9_]+(\.[A-Za-z0-9_-]{1,40}){1,3}")
_FIELDS = (  # each with the type that it may have, and the one that it mostly has, which is told faster
    ("multimodal_outputs", Mapping, dict),
    ("values", Mapping, dict),
    ("result", Mapping, MappingProxyType),
    ("encoded", Mapping, MappingProxyType),
    ("warnings", Sequence, tuple),
    ("artifacts", Sequence, tuple),
    ("tool_calls", Sequence, tuple),
)
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,60}/[A-Za-z0-9.+-]{1,60}(; ?[a-z]{1,20}=[A-Za-z0-9.+-]{1,60})?")


def check_output(output: Any, stage: str, reserved: Collection[str]) -> None:
    """Raise ModelError, naming the field, for what is no output, or an output with a field of another type.

    ``reserved``: the names of the pipeline's own artifacts. Tensors and values are checked against their flow, the
    result when it is written as JSON.
    """
    if not isinstance(output, OmniModelRunnerOutput):
        raise ModelError(f"{type(output).__name__} where an OmniModelRunnerOutput is due", field="output")
    for field, due, usual in _FIELDS:
        value = getattr(output, field)
        if type(value) is not usual:
            _check_type(value, due, field)
    if output.text is not None:
        _check_type(output.text, str, "text")
    if output.finish_reason not in (None, "stop", "length"):
        raise ModelError(f"stop or length is due, not {output.finish_reason!r:.60}", field="finish_reason")
    if output.usage is not None:
        _check_usage(output.usage)
    if output.warnings:
        _check_warnings(output.warnings)
    if output.artifacts:
        _check_artifacts(output.artifacts, stage, reserved)


def _check_type(value: object, due: type, field: str) -> None:
    if not isinstance(value, due) or (due is Sequence and isinstance(value, str)):
        raise ModelError(f"{type(value).__name__} where {due.__name__} is due", field=field)


def _check_usage(usage: Mapping[str, int]) -> None:
    _check_type(usage, Mapping, "usage")
    if any(type(tokens) is not int or not 0 <= tokens < 1 << 63 for tokens in usage.values()):
        raise ModelError("whole numbers are due", field="usage")


def _check_warnings(warnings: Sequence[Mapping[str, str]]) -> None:
    if len(warnings) > _MOST_WARNINGS:
        raise ModelError(f"{len(warnings)} warnings; at most {_MOST_WARNINGS} are kept", field="warnings")
    for number, warning in enumerate(warnings):
        field = f"warnings.{number}"
        _check_type(warning, Mapping, field)
        if set(warning) != {"code", "message"} or not all(isinstance(text, str) for text in warning.values()):
            raise ModelError("the texts code and message are due", field=field)
        if len(warning["code"]) > _MOST_CHARACTERS or len(warning["message"]) > _MOST_CHARACTERS:
            raise ModelError(f"at most {_MOST_CHARACTERS} characters are kept", field=field)


def _check_artifacts(artifacts: Sequence[Artifact], stage: str, reserved: Collection[str]) -> None:
    names = set(reserved)
    for number, artifact in enumerate(artifacts):
        field = f"artifacts.{number}"
        _check_type(artifact, Artifact, field)
        for each, pattern in (("name", _ARTIFACT), ("media_type", _MEDIA_TYPE)):
            value = getattr(artifact, each)
            if not isinstance(value, str) or not pattern.fullmatch(value):
                raise ModelError(f"{value!r:.100} is no {each} of an artifact", field=f"{field}.{each}")
        if not artifact.name.startswith(f"{stage}."):
            raise ModelError(f"{artifact.name!r} does not begin with {stage + '.'!r}", field=f"{field}.name")
        if artifact.name in names:
            raise ModelError(f"{artifact.name!r} is the name of two artifacts", field=f"{field}.name")
        names.add(artifact.name)
        if not isinstance(artifact.data, bytes | bytearray | memoryview):
            raise ModelError(f"{type(artifact.data).__name__} where bytes are due", field=f"{field}.data")
