"""``given_arguments``: vLLM's engine arguments that a stage config gives for the stage's device."""

from collections.abc import Mapping
from typing import Any

from omni_jobs.errors import ConfigError
from workers.runners.on_vllm.engine_settings import VllmEngine
from workers.stages.engine_args import OmniEngineArgs


def given_arguments(args: OmniEngineArgs, settings: type[VllmEngine], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments for vLLM's ``AsyncEngineArgs`` that the stage config gives.

    ``settings``: the runner's own class of them. ``own``: the arguments that the stage's component sets itself. Raises
    ConfigError for one of these, for settings of another runner, and without a device.
    """
    if args.device == "auto" or not isinstance(args.engine, settings):
        raise ConfigError("a device and vLLM's settings are due", field="engine", stage=args.stage)
    given = args.engine.vllm_args(args.device)
    for name in own:
        if name in given:
            component = None if args.model is None else args.model.component
            raise ConfigError(f"component {component} sets it itself", field=f"engine.{name}", stage=args.stage)
    return given
