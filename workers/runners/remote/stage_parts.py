"""What the processors of remote stages share: the stage's engine and parameters, and what a job says."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from omni_jobs.errors import ConfigError, InvalidRequest, ModelError
from omni_jobs.media.formats import Kind, format_of
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.messages import parts_of
from omni_jobs.requests.complaints import words_of
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.parameters import Endpoint
from workers.runners.remote.prompt import RemoteFile, RemotePrompt
from workers.stages.types import StageInput


class StageParts:
    """The engine settings of a processor's stage."""

    def __init__(self, stage: StageConfig, *endpoints: Endpoint) -> None:
        """Check that the processor serves the stage's endpoint. Raises ConfigError."""
        engine = stage.engine_settings
        if not isinstance(engine, RemoteEngine):
            raise ConfigError(f"processor {stage.processor} is for remote stages", field="processor", stage=stage.name)
        if engine.endpoint not in endpoints:
            raise ConfigError(
                f"processor {stage.processor} is for the endpoints {', '.join(endpoints)}, not {engine.endpoint}",
                field="processor",
                stage=stage.name,
            )
        self.engine = engine
        self._stage = stage.name

    def parameters(self, stage_input: StageInput[Any]) -> StageParameters:
        """Return a job's parameters as those of the endpoint. Raises InvalidRequest for one of another endpoint."""
        wanted, given = self.engine.parameters_type, stage_input.parameters
        if type(given) is wanted:
            return given
        try:
            return wanted.model_validate(given.model_dump(exclude_unset=True))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in ("stages", self._stage, *first["loc"]))
            raise InvalidRequest(words_of(first), field=field, stage=self._stage) from None

    def prompt(self, stage_input: StageInput[Any], **fields: Any) -> RemotePrompt:
        """Return a job's prompt with these ``fields`` of it. Raises InvalidRequest as ``parameters``."""
        audio = stage_input.request.get("audio") or {}
        return RemotePrompt(
            parameters=self.parameters(stage_input),
            seed=stage_input.seed,
            voice=audio.get("voice"),
            audio_format=audio.get("format"),
            capture=stage_input.has_successors,
            **fields,
        )


def media_of(stage_input: StageInput[Any], kind: Kind) -> list[RemoteFile]:
    """Return the media of a kind in a job's messages, in their order. Raises InvalidRequest naming a wrong one."""
    return [medium(stage_input, part, field) for field, part in parts_of(stage_input.request, kind)]


def medium(stage_input: StageInput[Any], part: Mapping[str, Any], field: str) -> RemoteFile:
    """Return the medium that a part of a message names. Raises InvalidRequest for bytes of no known format."""
    kind: Kind = part["type"]
    data = bytes(stage_input.media[part["media"]])
    found = format_of(kind, data)
    if found is None:
        raise InvalidRequest(f"no {kind} of a known format", field=field)
    return RemoteFile(f"{kind}.{found.name}", found.media_type, data)


def upstream_texts(stage_input: StageInput[Any]) -> list[str]:
    """Return the texts of earlier stages, of their flow ``text``. Raises ModelError for one that is no text."""
    texts = []
    for stage, payload in stage_input.upstream.items():
        information = payload.additional_information
        tensor = None if information is None else information.tensors.get("text")
        try:
            texts.append(bytes(tensor.data).decode())  # type: ignore[union-attr]
        except (AttributeError, UnicodeDecodeError):
            raise ModelError(f"stage {stage} left no text in UTF-8", field=f"{stage}.tensors.text") from None
    return texts
