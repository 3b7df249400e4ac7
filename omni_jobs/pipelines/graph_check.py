"""The checks of a pipeline's stage graph: what workers refuse whatever the checkpoint, found before they start."""

from graphlib import CycleError, TopologicalSorter

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.declarations import ComponentDeclaration
from omni_jobs.pipelines.engine_settings import Device
from omni_jobs.pipelines.flows import flow
from omni_jobs.pipelines.outputs import output
from omni_jobs.pipelines.parameter_limits import INPUT_PIXELS
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.plugins import check_there, named_class
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.pipelines.yaml_source import FieldPath, YamlSource, collected

_CYCLE = "the stages form a cycle"


def check_graph(pipeline: Pipeline, source: YamlSource) -> list[ConfigError]:
    """Check that every stage of a pipeline can run and is needed, and that every output can be made.

    Return a ConfigError for each field that is wrong, with its file and line. It is a PluginBroken for a field that
    names a missing or broken plug-in. What depends on such a field is not checked.
    """
    found: list[ConfigError] = []
    with collected(found):
        _check_acyclic(pipeline, source)
    for stage in pipeline.stages.values():
        _check_stage(pipeline, stage, source, found)
    for modality, made in pipeline.outputs.items():
        with collected(found):
            _check_output(pipeline, modality, made.stage, source)
    named = {earlier for stage in pipeline.stages.values() for earlier in stage.inputs}
    named |= {made.stage for made in pipeline.outputs.values()}
    is_whole = named <= set(pipeline.stages) and not any(error.message.startswith(_CYCLE) for error in found)
    used = {stage.name for stage in pipeline.stages_for(pipeline.outputs)} if is_whole else set(pipeline.stages)
    return found + [
        source.error(("stages", name), "no output needs this stage") for name in pipeline.stages if name not in used
    ]


def _check_acyclic(pipeline: Pipeline, source: YamlSource) -> None:
    try:
        TopologicalSorter({name: stage.inputs for name, stage in pipeline.stages.items()}).prepare()
    except CycleError as error:
        cycle = error.args[1][::-1]  # each stage before its input
        raise source.error(("stages", cycle[0], "inputs"), f"{_CYCLE}: {' → '.join(cycle)}") from None


def _check_output(pipeline: Pipeline, modality: str, stage: str, source: YamlSource) -> None:
    at = ("outputs", modality)
    with source.located(at):
        made = output(modality)
        if made.encoder is not None:
            check_there(made.encoder)
    _check_flow(pipeline, stage, made.flow, source, (*at, "stage"))


def _check_stage(pipeline: Pipeline, stage: StageConfig, source: YamlSource, found: list[ConfigError]) -> None:
    """Append the mistakes of one stage to ``found``."""
    at = ("stages", stage.name)
    before = len(found)
    with collected(found):
        _check_family(pipeline, stage, source)
    with collected(found), source.located((*at, "kind")):
        needs_model = not stage.runner.produces
        check_there(stage.runner.implementation)
        if needs_model and stage.model is None:
            raise ConfigError(f"kind {stage.kind} needs a model section, the stage's or the pipeline's")
    has_parts = len(found) == before
    with collected(found), source.located((*at, "produces")):
        _ = stage.flow
    if stage.slots_for_high >= stage.slots:
        message = f"must be less than the stage's slots, {stage.slots}, or other jobs would never run"
        found.append(source.error((*at, "slots_for_high"), message))
    for earlier, taken in stage.inputs.items():
        with collected(found):
            _check_flow(pipeline, earlier, taken, source, (*at, "inputs", earlier))
    if has_parts:
        _check_parts(pipeline, stage, source, found)


def _check_family(pipeline: Pipeline, stage: StageConfig, source: YamlSource) -> None:
    at = ("model", "family") if stage.model == pipeline.model else ("stages", stage.name, "model", "family")
    with source.located(at):
        if stage.family is not None and stage.family.prompts is not None:
            check_there(stage.family.prompts)


def _check_parts(pipeline: Pipeline, stage: StageConfig, source: YamlSource, found: list[ConfigError]) -> None:
    """Append the mistakes of a stage whose family and runner are known: of what it says of their parts."""
    at = ("stages", stage.name)
    component: ComponentDeclaration | None = None
    before = len(found)
    with collected(found):
        component = _component(stage, source)
    has_component = len(found) == before
    before = len(found)
    with collected(found), source.located((*at, "processor")):
        declared = stage.processor_declaration
        check_there(declared.implementation)
        if declared.check is not None:
            check_there(declared.check)
        if stage.kind != declared.runner:
            raise ConfigError(
                f"input processor {stage.processor} makes input for {declared.runner} stages, not {stage.kind}"
            )
    has_processor = len(found) == before
    if has_processor:
        _check_inputs(stage, component, source, found)
        if declared.produces and component is None:
            with collected(found):
                _check_produced(stage, declared.produces, f"the input processor {stage.processor}", source)
    for earlier, taken in stage.inputs.items():
        with collected(found):
            _check_dialect(pipeline, stage, earlier, taken, source)
    before = len(found)
    with collected(found), source.located((*at, "engine")):
        _ = stage.engine_settings
    has_settings = len(found) == before
    if has_settings:
        with collected(found):
            _check_dtype(stage, component, source)
        with collected(found):
            _check_taken(stage, component, source)
    if not has_component or not has_settings:  # a parameter may choose among what the settings list
        return
    with collected(found):
        with source.located((*at, "parameters")):
            defaults = stage.parameters_with({})
        if has_processor:
            with collected(found), source.located((*at, "processor")):
                _check_read_parameters(stage)
        if stage.limits:
            _check_limits(pipeline, stage, defaults, source)


def _check_read_parameters(stage: StageConfig) -> None:
    path = stage.processor_declaration.parameters or stage.runner.parameters
    read = StageParameters if path is None else named_class(path, StageParameters)
    if not issubclass(stage.parameters_type, read):
        raise ConfigError(
            f"input processor {stage.processor} reads {read.__name__}, and the stage has "
            f"{stage.parameters_type.__name__}"
        )


def _check_limits(pipeline: Pipeline, stage: StageConfig, defaults: StageParameters, source: YamlSource) -> None:
    """Check that the limits narrow, and that a job that sets nothing keeps them."""
    at = ("stages", stage.name, "limits")
    try:
        _ = stage.bounds
    except ConfigError as error:
        raise source.error((*at, *(() if error.field is None else (error.field,))), error.message) from None
    if INPUT_PIXELS in stage.limits and "image" not in pipeline.accepts:
        raise source.error((*at, INPUT_PIXELS), "the pipeline accepts no image")
    set_by_default = {name: getattr(defaults, name) for name in stage.limits if name in type(defaults).model_fields}
    if (found := stage.beyond_limits(set_by_default)) is not None:
        subject = f"the default of {found.limit}" if found.limit == found.parameter else "by default"
        raise source.error((*at, found.limit), f"{subject} {found.problem}: set another under parameters")


def _component(stage: StageConfig, source: YamlSource) -> ComponentDeclaration | None:
    """Return the declaration of the component that the stage runs, checked; None if its runner needs none."""
    at = ("stages", stage.name)
    if stage.runner.produces:
        if stage.component is not None:
            raise source.error((*at, "component"), f"a stage of kind {stage.kind} runs no component")
        _check_produced(stage, stage.runner.produces, f"a stage of kind {stage.kind}", source)
        return None
    if stage.family is None or stage.model is None:
        return None
    name, declared = stage.model.family, stage.component_declaration
    if declared is None:
        names = ", ".join(name for name in stage.family.components if name is not None)
        if stage.component is None:
            raise source.error((*at, "component"), f"is missing; family {name} has {names}")
        known = f"it has {names}" if names else "its checkpoint is run whole"
        if names and None in stage.family.components:
            known += ", and without a component its checkpoint is run whole"
        raise source.error((*at, "component"), f"family {name} has no component {stage.component!r}; {known}")
    subject = f"component {stage.component}" if stage.component is not None else f"family {name}"
    if stage.kind != declared.runner:
        raise source.error((*at, "kind"), f"{subject} is run by {declared.runner} stages, not {stage.kind}")
    _check_produced(stage, declared.produces, subject, source)
    if declared.implementation is not None:
        with source.located((*at, "component") if stage.component is not None else (*at, "kind")):
            check_there(declared.implementation)
    return declared


def _check_produced(stage: StageConfig, known: frozenset[str], subject: str, source: YamlSource) -> None:
    if stage.produces not in known:
        makes = " or ".join(sorted(known))
        raise source.error(("stages", stage.name, "produces"), f"{subject} makes {makes}, not {stage.produces}")


def _check_flow(pipeline: Pipeline, stage: str, wanted: str, source: YamlSource, at: FieldPath) -> None:
    """Check that the stage exists and makes the flow that the field ``at`` wants of it."""
    if stage not in pipeline.stages:
        raise source.error(at, f"no such stage {stage!r}")
    with source.located(at):
        _ = flow(wanted)
    made = pipeline.stages[stage].produces
    if wanted != made and wanted not in flow(made).includes:
        raise source.error(at, f"stage {stage!r} produces {made}, not {wanted}")


def _check_inputs(
    stage: StageConfig, component: ComponentDeclaration | None, source: YamlSource, found: list[ConfigError]
) -> None:
    """Check that the processor takes each input, and that no input is missing that processor or component need."""
    at = ("stages", stage.name, "inputs")
    declared = stage.processor_declaration
    taken = declared.consumes | declared.may_consume
    given: dict[str, str] = {}
    for earlier, each in stage.inputs.items():
        message = None
        if each not in taken:
            known = ", ".join(sorted(taken)) or "no input"
            message = f"input processor {stage.processor} takes {known}, not {each}"
        elif each in given and each not in declared.may_consume:
            message = f"input processor {stage.processor} takes one input of {each}, and {given[each]!r} is that"
        if message is not None:
            found.append(source.error((*at, earlier), message))
        given[each] = earlier
    for each in sorted(declared.consumes - set(given)):
        found.append(source.error(at, f"input processor {stage.processor} needs an input of {each}"))
    if component is not None:
        for each in sorted(component.needs - set(given)):
            found.append(source.error(at, f"component {stage.component} needs an input of {each}"))


def _check_dialect(pipeline: Pipeline, stage: StageConfig, earlier: str, taken: str, source: YamlSource) -> None:
    """Check that the numbers of an input mean the same to the stage's component and to the one that makes them."""
    maker = pipeline.stages.get(earlier)
    if maker is None or maker.produces != taken:
        return
    try:
        due, made = stage.dialect(taken), maker.dialect(taken)
    except ConfigError:
        return  # of a family, which is told of at its own field
    if due is not None and made != due:
        others = "others" if made is None else f"those of {made.name}"
        raise source.error(
            ("stages", stage.name, "inputs", earlier),
            f"component {stage.component} takes {taken} of {due.name}, and stage {earlier!r} makes {others}",
        )


def _check_taken(stage: StageConfig, component: ComponentDeclaration | None, source: YamlSource) -> None:
    """Check that the component takes those engine settings that only some models take."""
    taken = frozenset[str]() if component is None else component.takes
    for path in sorted(stage.engine_settings.asked_of_model):
        if (name := path.rpartition(".")[2]) not in taken:
            subject = f"component {stage.component}" if stage.component is not None else "the stage's model"
            raise source.error(("stages", stage.name, "engine", *path.split(".")), f"{subject} takes no {name}")


def _check_dtype(stage: StageConfig, component: ComponentDeclaration | None, source: YamlSource) -> None:
    """Check that the component can run in the engine settings' dtype on each device the stage may get."""
    at = ("stages", stage.name, "engine")
    if component is None or component.dtypes is None:
        return
    devices: tuple[Device, ...] = ("cuda", "cpu")
    if stage.device != "auto":
        devices = ("cpu",) if stage.device == "cpu" else ("cuda",)
    for device in devices:
        dtype = getattr(stage.engine_settings.on(device), "dtype", None)
        if dtype is not None and dtype not in component.dtypes:
            overridden = dtype != stage.engine.get("dtype")
            known = " or ".join(sorted(component.dtypes))
            raise source.error(
                (*at, *((device,) if overridden else ()), "dtype"),
                f"component {stage.component} runs in {known}, not {dtype}",
            )
