"""The types of a stage config: a pipeline, its stages, their engines' settings.

load_pipeline(path)                 in :mod:`omni_jobs.pipelines.loader`: reads and checks ``stage_configs/*.yaml``
pipeline.stages_for(["audio"])      the part of the graph that a job needs, in topological order
pipeline.stage("talker").slots      what one stage may do
pipeline.digest                     identifies what decides a job's result
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from omni_jobs.errors import ConfigError, NotFound
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.pipelines.declarations import (
    ComponentDeclaration,
    Family,
    ProcessorDeclaration,
    RunnerDeclaration,
    family,
    runner,
)
from omni_jobs.pipelines.engine_settings import EngineSettings
from omni_jobs.pipelines.flows import Dialect, Flow, flow
from omni_jobs.pipelines.outputs import output
from omni_jobs.pipelines.parameter_limits import INPUT_PIXELS, Beyond, Bounds, Limit, beyond, own_bounds
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.plugins import named_class
from omni_jobs.retry import RetryLimits

InputModality = Literal["text", "audio", "image", "video", "prompt_embeds"]
"""An input that a job can bring; ``prompt_embeds`` are embeddings in place of messages."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Frozen):
    """The checkpoint that stages load their components from."""

    family: Name  # an entry point of the group omni_jobs.families
    path: str | None = None  # a checkpoint directory; usually given at start (--model)


class StageConfig(_Frozen):
    """The settings of one stage in a pipeline file."""

    name: Name = ""  # the key in the YAML's ``stages``
    kind: Name  # its runner: an entry point of the group omni_jobs.runners
    model: ModelConfig | None = None  # the pipeline's, unless the stage has its own
    component: Name | None = None  # the part of the checkpoint: thinker, talker, code2wav …
    processor: Name  # an input processor's name, of the stage's family or of its runner
    inputs: dict[Name, Name] = {}  # earlier stage → the flow taken from it; empty: the stage reads the job's request
    produces: Name  # a flow
    engine: dict[str, Any] = {}  # ``kind`` decides their type: ``engine_settings``
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    slots: Annotated[int, Field(ge=1, le=4096, description="stage runs in flight in one worker")] = 8
    slots_for_high: Annotated[int, Field(ge=0)] = 0  # of the slots, those kept for jobs of priority high
    time_limit_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    queue_limit_s: Annotated[float, Field(gt=0)] | None = None  # a job that waits longer for this stage expires
    retries: RetryLimits = RetryLimits()
    max_payload_bytes: Annotated[int, Field(ge=0)] = 1 << 30
    parameters: dict[str, Any] = {}  # defaults; ``component`` or ``kind`` decides their type
    limits: dict[Name, Limit] = {}  # narrower bounds of what a job may set: by parameter, or a quantity such as pixels

    # What the names stand for. Each raises ConfigError for a name that is not installed, and PluginBroken.

    @cached_property
    def runner(self) -> RunnerDeclaration:
        """The declaration of the runner of this kind of stage."""
        return runner(self.kind)

    @cached_property
    def family(self) -> Family | None:
        """The family of the stage's model; None for a stage without a model."""
        return None if self.model is None else family(self.model.family)

    @cached_property
    def component_declaration(self) -> ComponentDeclaration | None:
        """The declaration of the component that the stage runs; None if its family has none of the name.

        A runner that needs no component runs none.
        """
        if self.family is None or self.runner.produces:
            return None
        return self.family.components.get(self.component)

    @property
    def is_resumable(self) -> bool:
        """Whether another attempt of a stage run can go on from a snapshot of an earlier one."""
        return self.component_declaration is not None and self.component_declaration.resumable

    @cached_property
    def processor_declaration(self) -> ProcessorDeclaration:
        """The declaration of the stage's input processor, its family's or else its runner's."""
        known = {**self.runner.processors, **({} if self.family is None else self.family.processors)}
        if self.processor not in known:
            raise ConfigError(
                f"no input processor {self.processor!r} for this stage; known: {', '.join(sorted(known))}"
            )
        return known[self.processor]

    @cached_property
    def blocking_prompts(self) -> bool:
        """Whether the input processor may take so long that it runs on a thread."""
        own = self.processor_declaration.blocking
        return self.runner.blocking_prompts if own is None else own

    @cached_property
    def flow(self) -> Flow:
        """The flow that the stage produces."""
        return flow(self.produces)

    def dialect(self, flow: str) -> Dialect | None:
        """Return what the numbers of a flow mean to the stage's component; None: it does not say."""
        component = self.component_declaration
        return None if component is None else component.dialects.get(flow)

    def spoken(self, name: str) -> Flow:
        """Return a flow that the stage makes or takes, in its component's dialect."""
        return flow(name).spoken(self.dialect(name))

    @cached_property
    def engine_settings(self) -> EngineSettings:
        """The stage's ``engine`` as an object of its runner's own class, which a worker's runner is made from.

        Raises pydantic's ValidationError if the file's are wrong.
        """
        return named_class(self.runner.engine, EngineSettings).model_validate(self.engine)

    @cached_property
    def parameters_type(self) -> type[StageParameters]:
        """The type of the stage's parameters."""
        component = self.component_declaration
        processor = self.runner.processors.get(self.processor) if self.runner.produces else None
        path = next((part.parameters for part in (component, processor) if part and part.parameters), None)
        path = path or self.runner.parameters
        return StageParameters if path is None else named_class(path, StageParameters)

    def parameters_with(self, overrides: Mapping[str, Any]) -> StageParameters:
        """Return the stage's default parameters with a job's ``overrides`` applied.

        The context of the validation is the stage's engine settings, because a parameter may choose among what they
        list. Raises pydantic's ValidationError for an unknown name or a value that is not allowed.
        """
        given = self.parameters_type.changed(self.parameters, overrides)
        return self.parameters_type.model_validate(given, context=self.engine_settings)

    def has_parameter(self, name: str) -> bool:
        """Whether a job may set a parameter of this name, with the stage's engine settings: it may give its default."""
        field = self.parameters_type.model_fields.get(name)
        if field is None:
            return False
        try:
            self.parameters_with({name: field.get_default(call_default_factory=True)})
        except ValidationError as error:
            return all(each["loc"][:1] != (name,) for each in error.errors(include_url=False, include_context=False))
        return True

    @cached_property
    def bounds(self) -> Mapping[str, Bounds]:
        """What each number may be that a job sets: the parameters' own bounds, narrowed by ``limits``.

        Raises ConfigError for a limit of another name, and for one that does not narrow.
        """
        bounds = own_bounds(self.parameters_type)
        if not self.inputs:
            bounds[INPUT_PIXELS] = Bounds(at_least=1, is_whole=True)
        for name, limit in self.limits.items():
            if name not in bounds:
                raise ConfigError(f"no number of this name; known: {', '.join(bounds) or 'none'}", field=name)
            try:
                bounds[name] = bounds[name].narrowed(limit)
            except ConfigError as error:
                error.field = name
                raise
        return bounds

    def beyond_limits(self, overrides: Mapping[str, Any]) -> Beyond | None:
        """Check a job's ``overrides``: return the first thing in which they are beyond ``limits``, or None.

        Raises pydantic's ValidationError as ``parameters_with`` does. The limits come first, so that the nearest number
        in a message is one that they let pass.
        """
        limited = {name: self.bounds[name] for name in self.limits}
        if (found := beyond(limited, overrides)) is not None:
            return found
        parameters = self.parameters_with(overrides)
        unused = {
            other if getattr(parameters, name) is not None else name
            for name, other in self.parameters_type.instead_of.items()
        }
        for name, its_parts in self.parameters_type.quantities.items():
            found = beyond(limited, {name: getattr(parameters, name)})
            if found is not None:
                parts = [part for part in its_parts if part not in unused]
                said = f"{' x '.join(parts)} are {getattr(parameters, name)} {name}, which {found.problem}"
                return Beyond(next((part for part in parts if part in overrides), parts[0]), name, said)
        return None

    def decisive(self) -> dict[str, Any]:
        """Return the settings that decide a job's result, a dict of JSON: the stage's part of the pipeline's digest."""
        graph = {"kind", "component", "processor", "inputs", "produces"}
        decisive: dict[str, Any] = self.model_dump(mode="json", include=graph, exclude_defaults=True)
        parameters = self.parameters_with({}).model_dump(mode="json", exclude_defaults=True)
        return decisive | {"parameters": parameters, "engine": self.engine_settings.decisive()}


class OutputConfig(_Frozen):
    """An entry of a pipeline's ``outputs``: the stage that makes the modality."""

    stage: Name


class Pipeline(_Frozen):
    """A stage graph: a directed acyclic graph from a job's request to its outputs. One YAML file, with a version."""

    name: Name
    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.\-]{1,20}$")]
    description: str = ""
    model: ModelConfig | None = None
    accepts: tuple[InputModality, ...] = ("text",)
    voices: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()  # the first is the default
    stages: Annotated[dict[Name, StageConfig], Field(min_length=1)]
    outputs: Annotated[dict[Name, OutputConfig], Field(min_length=1)]  # modality → the stage that makes it

    @model_validator(mode="before")
    @classmethod
    def _pass_the_model_on(cls, data: Any) -> Any:
        """Give the pipeline's model to each stage that has none of its own."""
        if not isinstance(data, dict) or "model" not in data or not isinstance(data.get("stages"), dict):
            return data
        stages = {
            name: {"model": data["model"], **stage} if isinstance(stage, dict) else stage
            for name, stage in data["stages"].items()
        }
        return {**data, "stages": stages}

    @cached_property
    def digest(self) -> str:
        """16 hex digits that identify the settings which decide a job's path and result.

        A worker claims only jobs of its own digest, so no job runs with two versions of a file.
        Included: name, version, accepted inputs, outputs, family, voices; per stage kind, component, processor, inputs,
        flow, default parameters, a family of its own, and those settings of its engine that decide a result.
        Excluded: slots, limits of all kinds, retries, memory, batches and devices, because an operator tunes them while
        jobs wait; descriptions; and the checkpoint's path, because the same weights lie elsewhere on each host.
        A field set to its default counts as unset, so that a new field with a default changes no digest.
        """
        decisive = {
            "name": self.name,
            "version": self.version,
            "architecture": None if self.model is None else self.model.family,  # "architecture" was its first name
            "accepts": sorted(self.accepts),
            "voices": self.voices,
            "stages": {name: stage.decisive() | self._own_family(stage) for name, stage in self.stages.items()},
            "outputs": {modality: output.stage for modality, output in self.outputs.items()},
        }
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    def _own_family(self, stage: StageConfig) -> dict[str, str]:
        if stage.model is None or (self.model is not None and stage.model.family == self.model.family):
            return {}
        return {"family": stage.model.family}

    @property
    def reader(self) -> StageConfig | None:
        """The stage whose model reads a job's request: the first with a model and without inputs; None if none is."""
        return next((stage for stage in self.stages.values() if stage.model is not None and not stage.inputs), None)

    def stage(self, name: str) -> StageConfig:
        """Return the stage of this name. Raises NotFound."""
        try:
            return self.stages[name]
        except KeyError:
            known = ", ".join(self.stages)
            raise NotFound(f"pipeline {self.name} has no stage {name!r}; it has {known}", field="stage") from None

    @cached_property
    def id(self) -> PipelineId:
        """The pipeline's identity."""
        return PipelineId(self.name, self.digest)

    def stage_id(self, stage: str) -> StageId:
        """Return the identity of a stage. Raises NotFound."""
        return StageId(self.id, self.stage(stage).name)

    def queue(self, stage: str) -> str:
        """Return the name of a stage's Celery queue, ``NAME@VERSION.STAGE``. Raises NotFound.

        It has no digest, because a broken plug-in's pipeline has none.
        """
        return f"{self.reference}.{self.stage(stage).name}"

    @property
    def reference(self) -> str:
        """What means this version alone wherever a pipeline may be named: NAME@VERSION."""
        return f"{self.name}@{self.version}"

    def successors(self, stage: str) -> tuple[str, ...]:
        """Return the names of the stages that take this stage's payload, whether or not a job runs them."""
        return tuple(name for name, config in self.stages.items() if stage in config.inputs)

    def stages_for(self, modalities: Iterable[str]) -> tuple[StageConfig, ...]:
        """Return the configs of the stages that a job with these of the ``outputs`` needs, each after its inputs."""
        ordered: dict[str, StageConfig] = {}
        for modality in modalities:
            self._put_after_inputs(self.outputs[modality].stage, ordered)
        return tuple(ordered.values())

    def artifacts_of(self, modalities: Iterable[str]) -> dict[str, str]:
        """Return which stage makes each artifact of a job with these modalities, by its name without its suffix.

        Modalities that are none of the ``outputs`` are passed over. Raises ConfigError for an output of no plug-in.
        """
        made = ((output(each).artifact, self.outputs[each].stage) for each in modalities if each in self.outputs)
        return {name: stage for name, stage in made if name is not None}

    def _put_after_inputs(self, name: str, ordered: dict[str, StageConfig]) -> None:
        if name not in ordered:
            for earlier in self.stages[name].inputs:
                self._put_after_inputs(earlier, ordered)
            ordered[name] = self.stages[name]
