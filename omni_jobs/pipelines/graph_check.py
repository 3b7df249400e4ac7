"""The checks of a pipeline's stage graph: what workers refuse whatever the checkpoint, found before they start."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import entry_points
from typing import Literal

from pydantic import ValidationError

from omni_jobs.pipelines.declarations import (
    ECHO_PRODUCES,
    PROMPTS,
    ComponentDeclaration,
    Components,
    Flow,
    ProcessorDeclaration,
    components_of,
    processor,
)
from omni_jobs.pipelines.stage_config import Modality, Pipeline, StageConfig
from omni_jobs.pipelines.yaml_source import FieldPath, YamlSource

_FLOW_OF_MODALITY: Mapping[Modality, Flow] = {"text": "text", "audio": "waveform"}

# Flows that a stage makes available beside the one it produces: an AR stage that captures hidden states decodes its
# text as well.
_ALSO_PRODUCED: Mapping[Flow, frozenset[Flow]] = {"hidden_states": frozenset({"text"})}

# Settings of vLLM and parameters of OpenAI that people will look for here.
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


def first_problem(error: ValidationError) -> tuple[FieldPath, str]:
    """Return the field of pydantic's first complaint about a pipeline file, and a message for the file's author."""
    first = error.errors()[0]
    path = tuple(part for part in first["loc"] if part != "[key]")
    if first["type"] != "extra_forbidden":
        return path, first["msg"]
    return path, _NOT_SUPPORTED.get(str(path[-1]), "unknown key")


def check_graph(pipeline: Pipeline, source: YamlSource) -> None:
    """Check that every stage of a pipeline can run and is needed, and that every output can be made.

    Raises ConfigError for the first field that is wrong, with its file and line.
    """
    components = _components(pipeline, source)
    _check_acyclic(pipeline, source)
    for stage in pipeline.stages.values():
        _check_stage(pipeline, stage, components, source)
    for modality, output in pipeline.outputs.items():
        _check_flow(pipeline, output.stage, _FLOW_OF_MODALITY[modality], source, ("outputs", modality, "stage"))
    used = {stage.name for stage in pipeline.stages_for(pipeline.outputs)}
    for name in pipeline.stages:
        if name not in used:
            raise source.error(("stages", name), "no output needs this stage")


def _components(pipeline: Pipeline, source: YamlSource) -> Components:
    """Return the components of the pipeline's architecture; none for a pipeline without a model."""
    if pipeline.model is None:
        return {}
    at = ("model", "architecture")
    installed = {entry.name for entry in entry_points(group=PROMPTS)}
    if pipeline.model.architecture not in installed:
        known = ", ".join(sorted(installed)) or "none"
        raise source.error(at, f"no such architecture installed; known: {known}")
    with source.located(at):
        return components_of(pipeline.model.architecture)


def _check_acyclic(pipeline: Pipeline, source: YamlSource) -> None:
    try:
        TopologicalSorter({name: stage.inputs for name, stage in pipeline.stages.items()}).prepare()
    except CycleError as error:
        cycle = error.args[1][::-1]  # each stage before its input
        raise source.error(("stages", cycle[0], "inputs"), f"the stages form a cycle: {' → '.join(cycle)}") from None


def _check_stage(pipeline: Pipeline, stage: StageConfig, components: Components, source: YamlSource) -> None:
    at = ("stages", stage.name)
    with source.located((*at, "processor")):
        declared = processor(stage.processor)
    if stage.kind != "echo" and pipeline.model is None:
        raise source.error((*at, "kind"), f"kind {stage.kind} needs the pipeline's model section")
    component = _component(pipeline, stage, components, source)
    if stage.kind != declared.kind:
        message = f"input processor {stage.processor} makes input for {declared.kind} stages, not {stage.kind}"
        raise source.error((*at, "processor"), message)
    for earlier, flow in stage.inputs.items():
        _check_flow(pipeline, earlier, flow, source, (*at, "inputs", earlier))
    _check_inputs(stage, component, declared, source)
    _check_engine(stage, component, source)
    try:
        stage.parameters_with({})
    except ValidationError as error:
        within, message = first_problem(error)
        raise source.error((*at, "parameters", *within), message) from None


def _component(
    pipeline: Pipeline, stage: StageConfig, components: Components, source: YamlSource
) -> ComponentDeclaration | None:
    """Return the declaration of the component that the stage runs, checked; None for an echo stage."""
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
        names = ", ".join(name for name in components if name is not None)
        if stage.component is None:
            raise source.error((*at, "component"), f"is missing; architecture {architecture} has {names}")
        known = f"it has {names}" if names else "its checkpoint is run whole"
        message = f"architecture {architecture} has no component {stage.component!r}; {known}"
        raise source.error((*at, "component"), message)
    subject = f"component {stage.component}" if stage.component is not None else f"architecture {architecture}"
    if stage.kind != declared.kind:
        raise source.error((*at, "kind"), f"{subject} is run by {declared.kind} stages, not {stage.kind}")
    if stage.produces not in declared.produces:
        makes = " or ".join(sorted(declared.produces))
        raise source.error((*at, "produces"), f"{subject} makes {makes}, not {stage.produces}")
    return declared


def _check_flow(pipeline: Pipeline, stage: str, wanted: Flow, source: YamlSource, at: FieldPath) -> None:
    """Check that the stage exists and makes the flow that the field ``at`` wants of it."""
    if stage not in pipeline.stages:
        raise source.error(at, f"no such stage {stage!r}")
    made = pipeline.stages[stage].produces
    if wanted != made and wanted not in _ALSO_PRODUCED.get(made, frozenset()):
        raise source.error(at, f"stage {stage!r} produces {made}, not {wanted}")


def _check_inputs(
    stage: StageConfig, component: ComponentDeclaration | None, declared: ProcessorDeclaration, source: YamlSource
) -> None:
    """Check that the processor takes each input, and that no input is missing that processor or component need."""
    at = ("stages", stage.name, "inputs")
    taken = declared.consumes | declared.may_consume
    given: dict[Flow, str] = {}
    for earlier, flow in stage.inputs.items():
        if flow not in taken:
            known = ", ".join(sorted(taken)) or "no input"
            raise source.error((*at, earlier), f"input processor {stage.processor} takes {known}, not {flow}")
        if flow in given and flow not in declared.may_consume:
            message = f"input processor {stage.processor} takes one input of {flow}, and {given[flow]!r} is that"
            raise source.error((*at, earlier), message)
        given[flow] = earlier
    for flow in sorted(declared.consumes - set(given)):
        raise source.error(at, f"input processor {stage.processor} needs an input of {flow}")
    if component is not None:
        for flow in sorted(component.needs - set(given)):
            raise source.error(at, f"component {stage.component} needs an input of {flow}")


def _check_engine(stage: StageConfig, component: ComponentDeclaration | None, source: YamlSource) -> None:
    """Check the engine's settings that the runner refuses whatever the checkpoint, on each device the stage may get."""
    if component is None:
        return
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cuda", "cpu")
    if stage.device != "auto":
        devices = ("cpu",) if stage.device == "cpu" else ("cuda",)
    for device in devices:
        engine = stage.engine.on(device)

        def at(name: str, device: str = device) -> FieldPath:
            overridden = device == "cpu" and stage.engine.cpu is not None and name in stage.engine.cpu.model_fields_set
            return ("stages", stage.name, "engine", *(("cpu",) if overridden else ()), name)

        if component.dtypes is not None and engine.dtype is not None and engine.dtype not in component.dtypes:
            known = " or ".join(sorted(component.dtypes))
            raise source.error(at("dtype"), f"component {stage.component} runs in {known}, not {engine.dtype}")
        tokens, sequences = engine.max_num_batched_tokens, engine.max_num_seqs
        if stage.kind == "ar" and tokens is not None and sequences is not None and tokens < sequences:
            message = f"{tokens} is less than max_num_seqs, {sequences}: each needs a token in a step"
            raise source.error(at("max_num_batched_tokens"), message)
