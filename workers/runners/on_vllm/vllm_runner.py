"""``VllmRunner``: the base of runners on vLLM's AsyncLLM, whose processes it starts and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError, EngineDead
from workers.runners.base_runner import BaseRunner, E, P
from workers.runners.engine_environment import lent_to_engines
from workers.runners.on_vllm.engine_settings import VllmEngine
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

if TYPE_CHECKING:
    from workers.vllm_hooks.engine import Engine


class VllmRunner(BaseRunner[P, E]):
    """Runs a component of a model on vLLM, in processes of its own on the stage's device."""

    def __init__(self, args: OmniEngineArgs, engine_args: Mapping[str, Any]) -> None:
        """Load nothing yet; ``engine_args`` are AsyncEngineArgs of vLLM. Raises ConfigError for other settings."""
        super().__init__(args)
        self._engine_args = engine_args
        self._engine: Engine | None = None

    async def start(self) -> None:
        """Start vLLM's processes and load the model there. Raises ConfigError as ``Engine.start`` does, EngineDead."""
        engine = await asyncio.to_thread(self._started)
        if self.args.model is not None:
            self.args = replace(self.args, model=replace(self.args.model, vllm=engine.model_config))
        self._engine = engine

    @property
    def model(self) -> OmniModelConfig:
        """The stage's model, with what vLLM says of it. Raises EngineDead before ``start``."""
        if self.args.model is None or self.args.model.vllm is None:
            raise EngineDead("the engine is not running", stage=self.args.stage)
        return self.args.model

    def _started(self) -> Engine:
        from workers.vllm_hooks.engine import Engine

        index = self.args.device_index
        device = {} if index is None else {"device_ids": [index]}
        with lent_to_engines(self.args.device):  # vLLM starts its processes with this one's environment
            arguments = {**self._engine_args, **device}
            return Engine.start(arguments, measures=self.args.measures, check_class=self._class_check())

    def _class_check(self) -> Callable[[type[Any]], None] | None:
        """Return what raises ConfigError for a model class that the engine's settings do not suit; None: any does."""
        return None

    async def close(self) -> None:
        """End the engine; runs in progress raise EngineDead. Safe to call twice."""
        engine, self._engine = self._engine, None
        self._runs.close()
        if engine is not None:
            await engine.close()

    @property
    def healthy(self) -> bool:
        return self._engine is not None and self._engine.healthy

    def _running(self) -> Engine:
        if self._engine is None:
            raise EngineDead("the engine is not running", stage=self.args.stage)
        return self._engine


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
