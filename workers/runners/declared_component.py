"""``declared_component``: what a family declares of the component that a stage runs."""

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.declarations import ComponentDeclaration, family
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig


def declared_component(args: OmniEngineArgs, kind: str) -> tuple[OmniModelConfig, ComponentDeclaration]:
    """Return the model of a stage of this kind, and the declaration of the component that the stage runs.

    Raises ConfigError without a model, or for a component that no such stage runs, and PluginBroken.
    """
    if args.model is None:
        raise ConfigError(f"a stage of the kind {kind} needs a model", field="model", stage=args.stage)
    components = family(args.model.family).components
    declared = components.get(args.model.component)
    if declared is None or declared.runner != kind:
        known = ", ".join(str(name) for name, each in components.items() if each.runner == kind) or "none"
        raise ConfigError(
            f"no stage of the kind {kind} runs {args.model.family}'s component {args.model.component!r}; "
            f"such a stage runs {known}",
            field="component",
            stage=args.stage,
        )
    return args.model, declared
