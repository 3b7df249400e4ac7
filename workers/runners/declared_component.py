"""``declared_component``: what a family declares of the component that a stage runs."""

from typing import TypeVar

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.declarations import ComponentDeclaration, family
from omni_jobs.pipelines.plugins import named_object
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

T = TypeVar("T")


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


def component_of(args: OmniEngineArgs, kind: str, description: type[T]) -> tuple[OmniModelConfig, T]:
    """Return the model of a stage of this kind, and the component as a ``description``: one of defaults by default.

    Raises ConfigError as ``declared_component`` does, and PluginBroken.
    """
    model, declared = declared_component(args, kind)
    if declared.implementation is None:
        return model, description()
    return model, named_object(declared.implementation, description)
