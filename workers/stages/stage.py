"""``Stage``: one configured step of a pipeline and its place in the graph.

A charter: a stage makes its input from a job, the engine's prompt from its input, and from its runner's output
the values that later stages and the user get. It runs nothing and stores nothing. A worker's executor and the
offline ``OmniLLM`` both run stages through here, so both give the same results.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from omni_jobs.errors import ConfigError, InvalidRequest, OmniJobsError
from omni_jobs.media.wall import MediaWall
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from omni_jobs.pipelines import declarations
from omni_jobs.pipelines.parameters import ArParameters, StageParameters
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import Artifact, EnginePrompt, OmniModelRunnerOutput, StageInput, StageResult, convert_tensors


class InputProcessor(Protocol):
    """Makes the engine prompt of one stage from the job and the payloads of earlier stages.

    Its declaration, an ``omni_jobs.pipelines.declarations.ProcessorDeclaration``, says which payloads it takes.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Read the parts of the checkpoint that the processor needs. Raises ConfigError when one is missing."""

    def __call__(self, stage_input: StageInput) -> EnginePrompt:
        """Return the engine's prompt. Raises PayloadError or ModelError, for media InvalidRequest, naming the field."""


class Stage:
    """One configured step of a pipeline: makes its prompts, and results of its outputs. Safe for threads."""

    def __init__(
        self, pipeline: Pipeline, config: StageConfig, model_path: Path | None, wall: MediaWall | None = None
    ) -> None:
        """Make the stage of a stage config, with the model at ``model_path``; None: at the pipeline's own path.

        ``wall`` decodes media; without one, ``make_prompt`` raises ConfigError for a job with media.
        Raises ConfigError when the checkpoint is missing or cannot be used.
        """
        self.pipeline = pipeline
        self.wall = wall
        self.config = config
        self.model = OmniModelConfig.for_stage(pipeline, config, model_path)

    @property
    def name(self) -> str:
        """The stage's name in its pipeline."""
        return self.config.name

    @cached_property
    def processor(self) -> InputProcessor:
        """The stage's input processor, loaded when it is first read. Raises ConfigError when it cannot be loaded."""
        declared = declarations.processor(self.config.processor)
        try:
            kind: type[InputProcessor] = resolve_name(declared.implementation)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"input processor {self.config.processor} cannot be loaded: {error}", field="processor", stage=self.name
            ) from error
        return kind(self.config, self.model)

    @cached_property
    def _parameters(self) -> StageParameters:
        return self.config.parameters_with({})

    # Before the run.

    def input_of(
        self,
        *,
        job_id: str,
        request: Mapping[str, Any],
        media: Sequence[bytes | memoryview],
        upstream: Mapping[str, Payload],
        seed: int,
        has_successors: bool,
    ) -> StageInput:
        """Return the stage input of one job, with the job's parameters over the stage config's.

        ``has_successors``: whether a later stage of the job takes this stage's payload. Raises InvalidRequest naming a
        parameter that is wrong.
        """
        overrides = request.get("parameters", {}).get(self.name, {})
        try:
            parameters = self.config.parameters_with(overrides) if overrides else self._parameters
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in ("stages", self.name, *first["loc"]))
            raise InvalidRequest(first["msg"], field=field, stage=self.name) from None
        return StageInput(
            job_id=job_id,
            request=request,
            media=media,
            upstream=upstream,
            parameters=parameters,
            seed=seed,
            # Codes and text are the tokens themselves: a stage that takes them wants no hidden states.
            capture=has_successors and (self.config.kind != "ar" or self.config.produces == "hidden_states"),
            wall=self.wall,
            has_successors=has_successors,
        )

    def make_prompt(self, stage_input: StageInput) -> EnginePrompt:
        """Return the engine prompt that the input processor makes; media take seconds. Its errors name this stage."""
        with self.named_in_errors():
            return self.processor(stage_input)

    # After the run.

    def finish(self, output: OmniModelRunnerOutput, stage_input: StageInput, attempt: int = 1) -> StageResult:
        """Return the payload, artifacts and result of this stage, from its runner's output.

        ``attempt`` stands in the payload's manifest. Raises ModelError for a waveform that cannot be encoded, and
        PayloadError for a tensor that a payload cannot hold; both carry this stage's name.
        """
        with self.named_in_errors():
            return StageResult(
                payload=self.payload_of(output, stage_input, attempt) if stage_input.has_successors else None,
                artifacts=self._artifacts_of(output),
                result=self._result_of(output, stage_input),
                finish_reason=output.finish_reason,
                warnings=self._warnings_of(output, stage_input),
            )

    def payload_of(self, output: OmniModelRunnerOutput, stage_input: StageInput, attempt: int) -> Payload:
        """Return the payload for later stages: hidden states, tokens, named outputs and values.

        Raises PayloadError for a tensor that a payload cannot hold.
        """
        tensors = convert_tensors(output.multimodal_outputs, _to_wire)
        if output.hidden_states is not None:
            tensors["hidden_states"] = _to_wire(output.hidden_states)
        if self.config.kind == "ar":
            name = "codes" if self.config.produces == "codes" else "token_ids"
            tensors[name] = _to_wire(np.asarray(output.token_ids, dtype=np.int64))
        values = dict(output.values)
        if output.prompt_token_ids:
            values["prompt_tokens"] = len(output.prompt_token_ids)
        voice = (stage_input.request.get("audio") or {}).get("voice")
        if voice is not None:
            values["voice"] = voice
        return Payload(
            manifest=Manifest(kind=self.config.produces, job_id=stage_input.job_id, stage=self.name, attempt=attempt),
            additional_information=AdditionalInformationPayload(tensors=tensors, values=values),
        )

    @property
    def makes_artifacts(self) -> bool:
        """Whether this stage makes the pipeline's audio output, which is stored as an artifact."""
        audio_output = self.pipeline.outputs.get("audio")
        return audio_output is not None and audio_output.stage == self.name

    def _artifacts_of(self, output: OmniModelRunnerOutput) -> list[Artifact]:
        if not self.makes_artifacts:
            return []
        from workers.stages.wav import encode_wav  # imports torch, which an echo worker never does

        data = encode_wav(output.multimodal_outputs.get("waveform"), int(output.values["sampling_rate"]))
        return [Artifact("audio.wav", "audio/wav", data)]

    def _result_of(self, output: OmniModelRunnerOutput, stage_input: StageInput) -> dict[str, Any]:
        result: dict[str, Any] = {}
        text_output = self.pipeline.outputs.get("text")
        if text_output is not None and text_output.stage == self.name:
            if "text" in stage_input.request.get("modalities", ()):
                result["text"] = output.text or ""
            if output.finish_reason is not None:
                result["finish_reason"] = output.finish_reason
        if self.config.kind == "ar":
            usage = {"prompt_tokens": len(output.prompt_token_ids), "completion_tokens": len(output.token_ids)}
            result["usage"] = {self.name: usage}
            if stage_input.request.get("return_token_ids"):
                result["token_ids"] = {self.name: list(output.token_ids)}
        return result

    def _warnings_of(self, output: OmniModelRunnerOutput, stage_input: StageInput) -> list[dict[str, str]]:
        if output.finish_reason != "length":
            return []
        made = "speech" if self.config.produces == "codes" else "text"
        limit = "at the end of its context"
        parameters = stage_input.parameters
        if isinstance(parameters, ArParameters) and len(output.token_ids) >= parameters.max_tokens:
            limit = f"at its max_tokens of {parameters.max_tokens}"
        return [{"code": "cut_short", "message": f"the {self.name} stopped {limit}: the {made} is probably cut"}]

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Context manager: give this stage's name to every OmniJobsError that is raised within and names no stage."""
        try:
            yield
        except OmniJobsError as error:
            error.stage = error.stage or self.name
            raise


def _to_wire(tensor: Any) -> Tensor:
    if isinstance(tensor, np.ndarray):
        return Tensor.from_numpy(tensor)
    # Only a stage with a model comes here. An echo worker never imports torch: 3 s and 300 MB.
    from workers.stages.tensors import from_torch

    return from_torch(tensor)
