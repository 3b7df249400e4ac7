"""Pipelines: the typed, versioned stage graphs in ``stage_configs/*.yaml``.

load_pipeline(path) → Pipeline      YAML → types → graph checks; every error names file, line, field
load_pipelines(dir) → Pipelines     all of a directory, by name
Pipelines.served(names)             those of them that a deployment serves
Pipeline.stages_for(modalities)     the part of the graph a job needs, in topological order
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omni_jobs.errors import ConfigError, NotFound
from omni_jobs.pipelines.declarations import (
    ECHO_PRODUCES,
    ComponentDeclaration,
    Components,
    Flow,
    ProcessorDeclaration,
    components_of,
    processor,
)
from omni_jobs.pipelines.parameters import PARAMETERS_OF_KIND, StageKind, StageParameters
from omni_jobs.retry import RetryLimits

__all__ = [
    "EngineSettings",
    "Flow",
    "Modality",
    "Pipeline",
    "Pipelines",
    "StageConfig",
    "load_pipeline",
    "load_pipelines",
]

Modality = Literal["text", "audio"]
"""What a job can ask for."""

InputModality = Literal["text", "audio", "image", "video", "prompt_embeds"]
"""What a job can bring; ``prompt_embeds``: embeddings in place of its messages."""

MediaModality = Literal["text", "audio", "image", "video"]

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]

PROMPTS = "omni_jobs.prompts"
SERVED = "OMNI_JOBS_PIPELINES"  # the setting that says which pipelines are served

_FLOW_OF_MODALITY: Mapping[Modality, Flow] = {"text": "text", "audio": "waveform"}
# The flows a stage that produces the key also makes available: an AR stage that
# captures hidden states decodes its text as well.
_ALSO: Mapping[Flow, frozenset[Flow]] = {"hidden_states": frozenset({"text"})}


# Settings of vLLM's and parameters of OpenAI's that people will look for here.
_NOT_SUPPORTED: Mapping[str, str] = {
    "speculative_config": (
        "speculative decoding is not supported: captured hidden states and additional information "
        "are kept by position, and a rejected draft would leave the wrong ones"
    ),
    "pipeline_parallel_size": (
        "pipeline parallelism is not supported: what is captured needs the first rank's embeddings "
        "and the last rank's hidden states; use tensor_parallel_size, or more stages"
    ),
    "data_parallel_size": "data parallelism is not supported: start more workers of the stage instead",
    "n": "several answers are not supported: a job has one; submit several jobs",
    "best_of": "several answers are not supported: a job has one; submit several jobs",
}


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineSettings(_Frozen):
    """A stage's engine; ``workers.stages.engine_args`` turns it into vLLM's own arguments.

    ``None`` leaves the choice to the engine or the checkpoint.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=16)] | None = None
    block_size: Annotated[int, Field(ge=1)] | None = None
    enforce_eager: bool | None = None
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    kv_cache_memory_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None
    limit_mm_per_prompt: dict[MediaModality, Annotated[int, Field(ge=0)]] | None = None
    skip_mm_profiling: bool | None = None
    max_batch_frames: Annotated[int, Field(ge=1)] | None = None  # diffusion: mel frames in one batch


class StageEngine(EngineSettings):
    """Engine settings, with what differs on hosts without an accelerator under ``cpu``."""

    cpu: EngineSettings | None = None

    def on(self, device: Literal["cpu", "cuda"]) -> EngineSettings:
        """The settings for one kind of device."""
        base = self.model_dump(exclude={"cpu"}, exclude_unset=True)
        if device == "cpu" and self.cpu is not None:
            base |= self.cpu.model_dump(exclude_unset=True)
        return EngineSettings(**base)


_DECISIVE_OF_ENGINE: Any = {"dtype": True, "max_model_len": True, "cpu": {"dtype", "max_model_len"}}


class StageConfig(_Frozen):
    """One configured step of a pipeline, with its own queue and workers."""

    name: Name = ""  # the key in the YAML's ``stages``
    kind: StageKind
    component: Name | None = None  # which part of the checkpoint: thinker, talker, code2wav …
    processor: Name  # entry point in the group omni_jobs.processors
    inputs: dict[Name, Flow] = {}  # earlier stage → what is taken from it; empty: the job's request
    produces: Flow
    engine: StageEngine = StageEngine()
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    slots: Annotated[int, Field(ge=1, le=4096, description="stage runs in flight in one worker")] = 8
    time_limit_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    queue_limit_s: Annotated[float, Field(gt=0)] | None = None  # waiting for longer than this: the job expires
    retries: RetryLimits = RetryLimits()
    max_payload_bytes: Annotated[int, Field(ge=0)] = 1 << 30
    parameters: dict[str, Any] = {}  # defaults, typed by ``kind``

    def decisive(self) -> dict[str, Any]:
        """What of it decides a job's result, as JSON: its part of the pipeline's digest."""
        found: dict[str, Any] = self.model_dump(
            mode="json",
            include={"kind", "component", "processor", "inputs", "produces"},
            exclude_defaults=True,
        )
        parameters = self.parameters_with({}).model_dump(mode="json", exclude_defaults=True)
        engine = self.engine.model_dump(mode="json", include=_DECISIVE_OF_ENGINE, exclude_defaults=True)
        return found | {"parameters": parameters, "engine": {name: each for name, each in engine.items() if each}}

    def parameters_with(self, overrides: Mapping[str, Any]) -> StageParameters:
        """The stage's defaults under a job's overrides. Raises pydantic's ValidationError."""
        return PARAMETERS_OF_KIND[self.kind].model_validate({**self.parameters, **overrides})

    def hints_per_message(self, at_most: int) -> int:
        """The hints of a full message: a quarter of a worker's slots, or idle workers would get nothing of a burst."""
        return max(1, min(at_most, self.slots // 4))


class OutputConfig(_Frozen):
    """Where an output modality comes from."""

    stage: Name


class ModelConfig(_Frozen):
    """The checkpoint all stages of a pipeline load their parts from."""

    architecture: Name  # entry point in the group omni_jobs.prompts
    path: str | None = None  # a checkpoint directory; usually given at start (--model)


class Pipeline(_Frozen):
    """A stage graph: a DAG from the job's request to its outputs."""

    name: Name
    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.\-]{1,20}$")]
    description: str = ""
    model: ModelConfig | None = None
    accepts: tuple[InputModality, ...] = ("text",)
    voices: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = ()  # the first is the default
    stages: Annotated[dict[Name, StageConfig], Field(min_length=1)]
    outputs: Annotated[dict[Modality, OutputConfig], Field(min_length=1)]

    @cached_property
    def digest(self) -> str:
        """16 hex digits over what decides a job's way and its result: a worker claims only jobs of its own digest.

        In it: name and version; each stage's kind, component, processor, inputs, flow and default
        parameters; outputs, architecture, voices, what is accepted; and of the engines ``dtype`` and
        ``max_model_len``, because they decide which tokens come and where they must end.
        Not in it: slots, limits, retries, memory, batches and devices, which an operator tunes while jobs
        wait; descriptions; and the checkpoint's path, because the same weights lie elsewhere on each host.
        What is written as its default counts as not written, so that a field with a default which is new in
        a build changes no digest.
        """
        what = {
            "name": self.name,
            "version": self.version,
            "architecture": None if self.model is None else self.model.architecture,
            "accepts": sorted(self.accepts),
            "voices": self.voices,
            "stages": {name: stage.decisive() for name, stage in self.stages.items()},
            "outputs": {modality: output.stage for modality, output in self.outputs.items()},
        }
        canonical = json.dumps(what, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def default_voice(self) -> str | None:
        return self.voices[0] if self.voices else None

    def stage(self, name: str) -> StageConfig:
        try:
            return self.stages[name]
        except KeyError:
            known = ", ".join(self.stages)
            raise NotFound(f"pipeline {self.name} has no stage {name!r}; it has {known}", field="stage") from None

    def queue(self, stage: str) -> str:
        """The Celery queue of one stage."""
        return f"{self.name}.{self.stage(stage).name}"

    def consumers(self, stage: str) -> tuple[str, ...]:
        """The stages that take this stage's payload."""
        return tuple(name for name, config in self.stages.items() if stage in config.inputs)

    def stages_for(self, modalities: Iterable[str]) -> tuple[StageConfig, ...]:
        """The stages a job with these output modalities needs, every one after its inputs."""
        ordered: dict[str, StageConfig] = {}
        for modality in modalities:
            output = self.outputs.get(modality)  # type: ignore[call-overload]
            if output is None:
                known = ", ".join(self.outputs)
                raise NotFound(f"pipeline {self.name} does not make {modality!r}; it makes {known}", field="modalities")
            self._put_after_inputs(output.stage, ordered)
        return tuple(ordered.values())

    def _put_after_inputs(self, name: str, ordered: dict[str, StageConfig]) -> None:
        if name not in ordered:
            for earlier in self.stages[name].inputs:
                self._put_after_inputs(earlier, ordered)
            ordered[name] = self.stages[name]


class Pipelines(Mapping[str, Pipeline]):
    """Pipelines by name: all of one directory, or those of them that are served."""

    def __init__(self, pipelines: Iterable[Pipeline], files: Mapping[str, Path] | None = None) -> None:
        """``files``: where each was read from, by name."""
        self._by_name = {pipeline.name: pipeline for pipeline in pipelines}
        self._files = files or {}
        self._read_again: dict[str, tuple[object, ConfigError | None]] = {}  # by name: what the file was, and came to

    def __getitem__(self, name: str) -> Pipeline:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def served(self, names: Sequence[str] | None) -> Pipelines:
        """Those that the setting ``pipelines`` names; None: all. Raises ConfigError for a name that none has."""
        if names is None:
            return self
        for name in names:
            if name not in self:
                known = ", ".join(self) or "none"
                raise ConfigError(f"no stage config has the name {name!r}; there are: {known}", field=SERVED)
        return Pipelines((self[name] for name in names), self._files)

    def refusal(self, name: str) -> ConfigError | None:
        """Why a process that starts now would refuse this pipeline's file; read again only when it has changed."""
        path = self._files[name]
        try:
            stat = path.stat()
            state: object = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError as error:
            state = error.errno
        known = self._read_again.get(name)
        if known is None or known[0] != state:
            known = self._read_again[name] = (state, _refusal_of(path, name))
        return known[1]

    def named(self, name: str, *, field: str = "model") -> Pipeline:
        """Like ``[]``, with an error for people."""
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(self._by_name) or "none"
            raise NotFound(f"unknown pipeline {name!r}; this server serves: {known}", field=field) from None


def load_pipelines(directory: Path) -> Pipelines:
    """All ``*.yaml`` of a directory. Raises ConfigError."""
    if not directory.is_dir():
        raise ConfigError("no such directory", file=str(directory))
    found: dict[str, Path] = {}
    pipelines = []
    for path in sorted(directory.glob("*.yaml")):
        pipeline = load_pipeline(path)
        if pipeline.name in found:
            raise ConfigError(f"{found[pipeline.name]} has this name already", file=str(path), field="name")
        found[pipeline.name] = path
        pipelines.append(pipeline)
    return Pipelines(pipelines, found)


def _refusal_of(path: Path, name: str) -> ConfigError | None:
    try:
        found = load_pipeline(path)
    except ConfigError as error:
        return error
    if found.name != name:
        return ConfigError(
            f"is {found.name!r} now; this process was started with {name!r}", file=str(path), field="name"
        )
    return None


def load_pipeline(path: Path) -> Pipeline:
    """One stage config, checked whole. Raises ConfigError with file, line and field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=str(path)) from error
    source = _Source(path, text)
    data = source.data
    if isinstance(data, dict) and isinstance(data.get("stages"), dict):
        for name, stage in data["stages"].items():
            if isinstance(stage, dict):
                if "name" in stage:
                    raise source.error(("stages", name, "name"), "unknown key (a stage's name is its key)")
                stage["name"] = name
    try:
        pipeline = Pipeline.model_validate(data)
    except ValidationError as error:
        raise source.error(*_first_problem(error)) from None
    _check_graph(pipeline, source)
    return pipeline


def _first_problem(error: ValidationError) -> tuple[tuple[str | int, ...], str]:
    """Where it is, and what it is in words."""
    first = error.errors()[0]
    path = tuple(part for part in first["loc"] if part != "[key]")
    if first["type"] != "extra_forbidden":
        return path, first["msg"]
    return path, _NOT_SUPPORTED.get(str(path[-1]), "unknown key")


def _check_graph(pipeline: Pipeline, source: _Source) -> None:
    prompts = {entry.name for entry in entry_points(group=PROMPTS)}
    components: Components = {}
    if pipeline.model is not None:
        at: tuple[str, ...] = ("model", "architecture")
        if pipeline.model.architecture not in prompts:
            known = ", ".join(sorted(prompts)) or "none"
            raise source.error(at, f"no such architecture installed; known: {known}")
        with source.located(at):
            components = components_of(pipeline.model.architecture)
    _check_acyclic(pipeline, source)
    for name, stage in pipeline.stages.items():
        at = ("stages", name)
        with source.located((*at, "processor")):
            takes = processor(stage.processor)
        if stage.kind != "echo" and pipeline.model is None:
            raise source.error((*at, "kind"), f"kind {stage.kind} needs the pipeline's model section")
        component = _check_component(pipeline, stage, components, source)
        if stage.kind != takes.kind:
            made = f"input processor {stage.processor} makes input for {takes.kind} stages, not {stage.kind}"
            raise source.error((*at, "processor"), made)
        for earlier, flow in stage.inputs.items():
            if earlier not in pipeline.stages:
                raise source.error((*at, "inputs", earlier), f"no such stage {earlier!r}")
            _check_flow(pipeline, earlier, flow, source, (*at, "inputs", earlier))
        _check_inputs(stage, component, takes, source)
        _check_engine(stage, component, source)
        try:
            stage.parameters_with({})
        except ValidationError as error:
            within, message = _first_problem(error)
            raise source.error((*at, "parameters", *within), message) from None
    for modality, output in pipeline.outputs.items():
        if output.stage not in pipeline.stages:
            raise source.error(("outputs", modality, "stage"), f"no such stage {output.stage!r}")
        _check_flow(pipeline, output.stage, _FLOW_OF_MODALITY[modality], source, ("outputs", modality, "stage"))
    used = {stage.name for stage in pipeline.stages_for(pipeline.outputs)}
    for name in pipeline.stages:
        if name not in used:
            raise source.error(("stages", name), "no output needs this stage")


def _check_component(
    pipeline: Pipeline, stage: StageConfig, components: Components, source: _Source
) -> ComponentDeclaration | None:
    """What the stage runs, as its architecture declares it; None: an echo stage runs none."""
    at = ("stages", stage.name)
    if stage.kind == "echo":
        if stage.component is not None:
            raise source.error((*at, "component"), "an echo stage runs no component")
        if stage.produces not in ECHO_PRODUCES:
            makes = " or ".join(sorted(ECHO_PRODUCES))
            raise source.error((*at, "produces"), f"an echo stage makes {makes}, not {stage.produces}")
        return None
    architecture = pipeline.model.architecture if pipeline.model is not None else None
    declared = components.get(stage.component)
    if declared is None:
        named = ", ".join(name for name in components if name is not None)
        if stage.component is None:
            raise source.error((*at, "component"), f"is missing; architecture {architecture} has {named}")
        known = f"it has {named}" if named else "its checkpoint is run whole"
        message = f"architecture {architecture} has no component {stage.component!r}; {known}"
        raise source.error((*at, "component"), message)
    what = f"component {stage.component}" if stage.component is not None else f"architecture {architecture}"
    if stage.kind != declared.kind:
        raise source.error((*at, "kind"), f"{what} is run by {declared.kind} stages, not {stage.kind}")
    if stage.produces not in declared.produces:
        makes = " or ".join(sorted(declared.produces))
        raise source.error((*at, "produces"), f"{what} makes {makes}, not {stage.produces}")
    return declared


def _check_inputs(
    stage: StageConfig, component: ComponentDeclaration | None, takes: ProcessorDeclaration, source: _Source
) -> None:
    """The inputs are what the processor takes, and what the component cannot do without is among them."""
    at = ("stages", stage.name, "inputs")
    given: dict[Flow, str] = {}
    for earlier, flow in stage.inputs.items():
        if flow not in takes.consumes | takes.may_consume:
            known = ", ".join(sorted(takes.consumes | takes.may_consume)) or "no input"
            raise source.error((*at, earlier), f"input processor {stage.processor} takes {known}, not {flow}")
        if flow in given and flow not in takes.may_consume:
            one = f"input processor {stage.processor} takes one input of {flow}, and {given[flow]!r} is that"
            raise source.error((*at, earlier), one)
        given[flow] = earlier
    for flow in sorted(takes.consumes - set(given)):
        raise source.error(at, f"input processor {stage.processor} needs an input of {flow}")
    if component is not None:
        for flow in sorted(component.needs - set(given)):
            raise source.error(at, f"component {stage.component} needs an input of {flow}")


def _check_engine(stage: StageConfig, component: ComponentDeclaration | None, source: _Source) -> None:
    """What the runner refuses of the engine's settings whatever the checkpoint: on each device that it may get."""
    if component is None:
        return
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cuda", "cpu")
    if stage.device != "auto":
        devices = ("cpu",) if stage.device == "cpu" else ("cuda",)
    for device in devices:
        engine = stage.engine.on(device)

        def at(name: str, device: str = device) -> tuple[str, ...]:
            overridden = device == "cpu" and stage.engine.cpu is not None and name in stage.engine.cpu.model_fields_set
            return ("stages", stage.name, "engine", *(("cpu",) if overridden else ()), name)

        if component.dtypes is not None and engine.dtype is not None and engine.dtype not in component.dtypes:
            known = " or ".join(sorted(component.dtypes))
            raise source.error(at("dtype"), f"component {stage.component} runs in {known}, not {engine.dtype}")
        tokens, sequences = engine.max_num_batched_tokens, engine.max_num_seqs
        if stage.kind == "ar" and tokens is not None and sequences is not None and tokens < sequences:
            message = f"{tokens} is less than max_num_seqs, {sequences}: each needs a token in a step"
            raise source.error(at("max_num_batched_tokens"), message)


def _check_flow(pipeline: Pipeline, stage: str, wanted: Flow, source: _Source, at: tuple[str, ...]) -> None:
    made = pipeline.stages[stage].produces
    if wanted != made and wanted not in _ALSO.get(made, frozenset()):
        raise source.error(at, f"stage {stage!r} produces {made}, not {wanted}")


def _check_acyclic(pipeline: Pipeline, source: _Source) -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycle = " → ".join((*path[path.index(name) :], name))
            raise source.error(("stages", name, "inputs"), f"the stages form a cycle: {cycle}")
        if name not in done and name in pipeline.stages:
            for earlier in pipeline.stages[name].inputs:
                visit(earlier, (*path, name))
            done.add(name)

    for name in pipeline.stages:
        visit(name, ())


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not a string", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Source:
    """One YAML text: its data, and the line of every field for errors."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        loader = _UniqueKeyLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise ConfigError("the file is empty", file=str(path), line=1)
            self._root: yaml.Node = root
            self.data = loader.construct_document(root)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise ConfigError(
                f"not valid YAML: {error.problem}", file=str(path), line=mark.line + 1 if mark else None
            ) from error
        except yaml.YAMLError as error:
            raise ConfigError(f"not valid YAML: {error}", file=str(path)) from error
        finally:
            loader.dispose()

    @contextmanager
    def located(self, at: tuple[str | int, ...]) -> Iterator[None]:
        """A ConfigError from within gets this file, and the line and field of ``at``."""
        try:
            yield
        except ConfigError as error:
            raise self.error(at, error.message) from error

    def error(self, at: tuple[str | int, ...], message: str) -> ConfigError:
        field = ".".join(str(part) for part in at)
        return ConfigError(message, file=str(self._path), line=self._line(at), field=field or None)

    def _line(self, at: tuple[str | int, ...]) -> int:
        node: yaml.Node = self._root
        line = node.start_mark.line
        for part in at:
            if isinstance(node, yaml.MappingNode):
                match = next(((key, value) for key, value in node.value if key.value == part), None)
                if match is None:
                    break
                line, node = match[0].start_mark.line, match[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line
            else:
                break
        return int(line) + 1
