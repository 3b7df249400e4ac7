"""``Stage``: one configured step of a pipeline and its place in the graph.

A charter: a stage makes its input from a job, the engine's prompt from its input, and from its runner's output
the values that later stages and the user get. It runs nothing and stores nothing. A worker's executor and the
offline ``OmniLLM`` both run stages through here, so both give the same results.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from pydantic import ValidationError

from omni_jobs.errors import ConfigError, InvalidRequest, ModelError, OmniJobsError, PayloadCorrupt, PluginBroken
from omni_jobs.media.wall import MediaWall
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, PromptEmbedsPayload, Tensor
from omni_jobs.pipelines.flows import Flow, flow
from omni_jobs.pipelines.outputs import Output, output
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.plugins import named_object
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from workers.stages.engine_args import OmniModelConfig
from workers.stages.made import made_by
from workers.stages.output_check import check_output
from workers.stages.types import Artifact, EnginePrompt, OmniModelRunnerOutput, StageInput, StageResult, convert_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray


class InputProcessor(Protocol):
    """Makes the engine prompt of one stage from the job and the payloads of earlier stages.

    Its declaration, an ``omni_jobs.pipelines.declarations.ProcessorDeclaration``, says which payloads it takes.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Read the parts of the checkpoint that the processor needs. Raises ConfigError when one is missing."""

    def __call__(self, stage_input: StageInput[Any]) -> EnginePrompt:
        """Return the engine's prompt. Raises PayloadError or ModelError, for media InvalidRequest, naming the field."""


class Stage:
    """One configured step of a pipeline: makes its prompts, and results of its outputs. Safe for threads."""

    def __init__(
        self,
        pipeline: Pipeline,
        config: StageConfig,
        model_path: Path | None,
        wall: MediaWall | None = None,
        *,
        job_ids_in_pictures: bool = False,
    ) -> None:
        """Make the stage of a stage config, with the model at ``model_path``; None: the stage has no model.

        ``wall`` decodes media; without one, ``make_prompt`` raises ConfigError for a job with media.
        ``job_ids_in_pictures``: an encoder that writes the seed into its file gets the job's id, too.
        Raises ConfigError when the checkpoint is missing or cannot be used.
        """
        self.pipeline = pipeline
        self.wall = wall
        self.config = config
        self.model = OmniModelConfig.for_stage(pipeline, config, model_path)
        self._job_ids_in_pictures = job_ids_in_pictures

    @property
    def name(self) -> str:
        """The stage's name in its pipeline."""
        return self.config.name

    @cached_property
    def processor(self) -> InputProcessor:
        """The stage's input processor, loaded when it is first read. Raises PluginBroken when it cannot be loaded."""
        try:
            kind: type[InputProcessor] = named_object(self.config.processor_declaration.implementation, type)
        except PluginBroken as error:
            raise PluginBroken(
                f"input processor {self.config.processor}: {error.message}", field="processor", stage=self.name
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
    ) -> StageInput[Any]:
        """Return the stage input of one job, with the job's parameters over the stage config's.

        ``has_successors``: whether a later stage of the job takes this stage's payload. Raises InvalidRequest naming a
        parameter that is wrong, and PayloadCorrupt for a payload that breaks its flow.
        """
        for earlier, taken in self._flows_of_inputs.items():
            if earlier in upstream and (problem := taken.problem(upstream[earlier])) is not None:
                raise PayloadCorrupt(problem.message, field=problem.field, key=upstream[earlier].key, stage=self.name)
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
            capture=has_successors and not self.config.flow.from_tokens,
            wall=self.wall,
            has_successors=has_successors,
        )

    def make_prompt(self, stage_input: StageInput[Any]) -> EnginePrompt:
        """Return the engine prompt that the input processor makes; media take seconds. Its errors name this stage."""
        with self.named_in_errors():
            return self.processor(stage_input)

    # After the run.

    def finish(self, output: OmniModelRunnerOutput, stage_input: StageInput[Any], attempt: int = 1) -> StageResult:
        """Return the payload, artifacts and result of this stage, from its runner's output.

        ``attempt`` stands in the payload's manifest. Raises ModelError for an output that breaks its flow or
        cannot be encoded or has a field of another type, and PayloadError for a tensor that a payload cannot hold; both
        carry this stage's name.
        """
        with self.named_in_errors():
            check_output(output, self.name, self._artifact_names)
            result = self._result_of(output, stage_input)
            return StageResult(
                payload=self.payload_of(output, stage_input, attempt) if stage_input.has_successors else None,
                artifacts=self._artifacts_of(output, stage_input),
                result=result,
                finish_reason=output.finish_reason,
                warnings=self._warnings_of(output, stage_input),
                made=made_by(output, result.get("usage", {}).get(self.name, {})),
            )

    def payload_of(self, output: OmniModelRunnerOutput, stage_input: StageInput[Any], attempt: int) -> Payload:
        """Return the payload for later stages: hidden states, tokens, text, named outputs and values.

        Raises ModelError for an output that breaks the stage's flow, and PayloadError for a tensor that a payload
        cannot hold.
        """
        outputs = dict(output.multimodal_outputs)
        embeds = outputs.pop("prompt_embeds", None) if self.config.flow.prompt_embeds else None
        tensors = convert_tensors(outputs, _to_wire)
        if output.hidden_states is not None:
            tensors["hidden_states"] = _to_wire(output.hidden_states)
        if output.token_ids:
            name = "codes" if "codes" in self._tensors_taken else "token_ids"
            tensors[name] = _to_wire(np.asarray(output.token_ids, dtype=np.int64))
        if output.text is not None and "text" in self._tensors_taken:
            tensors["text"] = _to_wire(np.frombuffer(output.text.encode(), dtype=np.uint8))
        payload = Payload(
            manifest=Manifest(kind=self.config.produces, job_id=stage_input.job_id, stage=self.name, attempt=attempt),
            prompt_embeds=None if embeds is None else PromptEmbedsPayload(_to_wire(embeds)),
            additional_information=AdditionalInformationPayload(tensors, self._values_of(output, stage_input)),
        )
        for each in self._flows_taken:
            _check_flow(each, payload)
        return payload

    @cached_property
    def _flows_taken(self) -> Sequence[Flow]:
        """The flows that payloads of this stage keep: the one that it produces, and those that later stages take."""
        later = (self.pipeline.stages[name].inputs[self.name] for name in self.pipeline.successors(self.name))
        return [self.config.spoken(name) for name in dict.fromkeys((self.config.produces, *later))]

    @cached_property
    def _flows_of_inputs(self) -> Mapping[str, Flow]:
        return {earlier: self.config.spoken(name) for earlier, name in self.config.inputs.items()}

    @cached_property
    def _tensors_taken(self) -> frozenset[str]:
        return frozenset(name for each in self._flows_taken for name in each.tensors)

    def _values_of(self, output: OmniModelRunnerOutput, stage_input: StageInput[Any]) -> dict[str, Any]:
        values = dict(output.values)
        if output.prompt_token_ids:
            values["prompt_tokens"] = len(output.prompt_token_ids)
        if stage_input.voice is not None:
            values["voice"] = stage_input.voice
        return values

    @cached_property
    def _encoded_outputs(self) -> Sequence[Output]:
        """The pipeline's outputs that this stage makes and that are stored as artifacts."""
        made = (output(name) for name, config in self.pipeline.outputs.items() if config.stage == self.name)
        return [each for each in made if each.formats]

    @cached_property
    def _artifact_names(self) -> frozenset[str]:
        """The names that the artifacts of the pipeline's outputs may have."""
        made = [output(name) for name in self.pipeline.outputs]
        return frozenset(each.artifact_name(format_) for each in made for format_ in each.formats)

    @property
    def makes_artifacts(self) -> bool:
        """Whether this stage makes an output that is stored as an artifact."""
        return bool(self._encoded_outputs)

    def _artifacts_of(self, output: OmniModelRunnerOutput, stage_input: StageInput[Any]) -> list[Artifact]:
        wanted = stage_input.request.get("modalities", ())
        outputs = [made for made in self._encoded_outputs if made.modality in wanted]
        return [*(self._artifact(made, output, stage_input) for made in outputs), *output.artifacts]

    def _artifact(self, made: Output, output: OmniModelRunnerOutput, stage_input: StageInput[Any]) -> Artifact:
        encoded = output.encoded.get(made.modality)
        if encoded is not None:
            format_, data = made.format(encoded.format), encoded.data
        else:
            format_ = made.format((stage_input.request.get(made.modality) or {}).get("format"))
            tensors = self._tensors_of(flow(made.flow), output, stage_input)
            metadata = [self._metadata_of(stage_input)] if made.metadata else []
            data = _encoder(made)(tensors, output.values, format_.name, *metadata)
        return Artifact(made.artifact_name(format_), format_.media_type, data, made.modality)

    def _metadata_of(self, stage_input: StageInput[Any]) -> Mapping[str, str]:
        seed = {"seed": str(stage_input.seed)}
        return seed | {"job_id": stage_input.job_id} if self._job_ids_in_pictures else seed

    def _tensors_of(
        self, contract: Flow, output: OmniModelRunnerOutput, stage_input: StageInput[Any]
    ) -> "dict[str, NDArray[Any]]":
        """Return the tensors of which an output of this flow is encoded. Raises ModelError where they break the flow.

        The payload that is checked here is never written: a last stage has none.
        """
        named = {name: output.multimodal_outputs.get(name) for name in contract.tensors}
        tensors = convert_tensors({name: each for name, each in named.items() if each is not None}, _to_wire)
        manifest = Manifest(kind=contract.name, job_id=stage_input.job_id, stage=self.name, attempt=1)
        information = AdditionalInformationPayload(tensors, output.values)
        _check_flow(contract, Payload(manifest, additional_information=information))
        return {name: each.numpy() for name, each in tensors.items()}

    def _result_of(self, output: OmniModelRunnerOutput, stage_input: StageInput[Any]) -> dict[str, Any]:
        result: dict[str, Any] = {name: {self.name: value} for name, value in output.result.items()}
        text_output = self.pipeline.outputs.get("text")
        if text_output is not None and text_output.stage == self.name:
            if "text" in stage_input.request.get("modalities", ()):
                result["text"] = output.text or ""
            if output.finish_reason is not None:
                has_called = output.tool_calls and output.finish_reason == "stop"
                result["finish_reason"] = "tool_calls" if has_called else output.finish_reason
            if output.tool_calls:
                result["tool_calls"] = [dict(call) for call in output.tool_calls]
        elif output.text is not None and self.config.produces == "text":
            result["texts"] = {self.name: output.text}  # a transcript, for example
        if output.usage is not None:
            result["usage"] = {self.name: dict(output.usage)}
        elif output.token_ids or output.prompt_token_ids:
            usage = {"prompt_tokens": len(output.prompt_token_ids), "completion_tokens": len(output.token_ids)}
            result["usage"] = {self.name: usage}
        if output.token_ids and stage_input.request.get("return_token_ids"):
            result["token_ids"] = {self.name: list(output.token_ids)}
        return result

    def _warnings_of(self, output: OmniModelRunnerOutput, stage_input: StageInput[Any]) -> list[Mapping[str, str]]:
        if output.finish_reason != "length":
            return list(output.warnings)
        made = self.config.flow.content
        limit = "at the end of its context"
        most = getattr(stage_input.parameters, "max_tokens", None)
        completed = (output.usage or {}).get("completion_tokens", len(output.token_ids))
        if most is not None and completed >= most:
            limit = f"at its max_tokens of {most}"
        cut = {"code": "cut_short", "message": f"the {self.name} stopped {limit}: the {made} is probably cut"}
        return [*output.warnings, cut]

    def named_in_errors(self) -> "_Naming":
        """Context manager: give this stage's name to every OmniJobsError that is raised within and names no stage."""
        return _Naming(self.name)


class _Naming:
    def __init__(self, stage: str) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OmniJobsError):
            error.stage = error.stage or self._stage


def _encoder(made: Output) -> Callable[..., bytes]:
    """Return the function that makes an artifact's bytes, of the form that ``workers.encoders`` describes.

    Raises ConfigError if there is none, and PluginBroken.
    """
    if made.encoder is None:
        raise ConfigError(f"output {made.modality} has no encoder", field="outputs")
    return cast("Callable[..., bytes]", named_object(made.encoder, object))


def _check_flow(contract: Flow, payload: Payload) -> None:
    """Raise ModelError, naming the field, for a stage's output that breaks a flow."""
    if (problem := contract.problem(payload)) is not None:
        raise ModelError(f"the output is no {contract.name}: {problem.message}", field=problem.field)


def _to_wire(tensor: Any) -> Tensor:
    if isinstance(tensor, np.ndarray):
        return Tensor.from_numpy(tensor)
    # Only a stage with a model comes here. An echo worker never imports torch: 3 s and 300 MB.
    from workers.stages.tensors import from_torch

    return from_torch(tensor)
