"""``GPUDiffusionWorker``: a diffusion stage's device and model."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch

from omni_jobs.errors import ConfigError, EngineDead
from omni_jobs.pipelines.plugins import named_object
from workers.runners.declared_component import declared_component
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.gpu_diffusion_model_runner import GPUDiffusionModelRunner
from workers.runners.diffusion.model import (
    AdaptableModel,
    DiffusionModel,
    DividedModel,
    LoadDiffusionModel,
    OffloadedModel,
    ResumableModel,
)
from workers.runners.diffusion.ranks import Ranks
from workers.runners.diffusion.step_budget import StepBudget
from workers.stages.engine_args import OmniEngineArgs

logger = logging.getLogger(__name__)

_PROTOCOLS: Mapping[str, type] = {
    "lora_modules": AdaptableModel,
    "devices": DividedModel,
    "offload_blocks": OffloadedModel,
}
"""What a model is whose component takes these engine settings."""


class GPUDiffusionWorker:
    """Owns a diffusion stage's device: loads the model onto it and frees it. For one thread."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Choose the device; load nothing yet. Raises ConfigError for a model or dtype that no diffusion stage runs."""
        self._model, component = declared_component(args, "diffusion")
        if not isinstance(args.engine, DiffusionEngine):
            raise ConfigError("no settings of a diffusion engine", field="engine", stage=args.stage)
        self.engine = args.engine
        if component.dtypes is not None and self.engine.dtype not in (None, *component.dtypes):
            known = " or ".join(sorted(component.dtypes))
            raise ConfigError(
                f"{self._model.component} runs in {known}, not {self.engine.dtype}",
                field="engine.dtype",
                stage=args.stage,
            )
        if component.implementation is None:
            raise ConfigError("its declaration names no implementation", field="component", stage=args.stage)
        for name in sorted(self.engine.asked_of_model - component.takes):
            message = f"{self._model.family}/{self._model.component} takes no {name}"
            raise ConfigError(message, field=f"engine.{name}", stage=args.stage)
        if self.engine.offload_blocks and args.device == "cpu":
            message = "on a CPU all weights are in host memory: set it under cuda"
            raise ConfigError(message, field="engine.offload_blocks", stage=args.stage)
        self._component = component
        index = "" if args.device_index is None else f":{args.device_index}"
        self.device = torch.device(f"{args.device}{index}")
        self._args = args
        self._model_runner: GPUDiffusionModelRunner | None = None
        self._ranks: Ranks | None = None

    def load_model(self) -> None:
        """Load the model onto the device. Raises ConfigError when the checkpoint lacks a part of it."""
        begun = time.monotonic()
        ranks = self._ranks = Ranks(self._args, self.engine) if self.engine.devices > 1 else None
        if ranks is not None:
            self._check_devices()
            ranks.start()
        model = self.load()
        if ranks is not None:
            ranks.join(self.device)
            cast("DividedModel", model).divide(ranks)
        budget = StepBudget(
            self.engine.max_batch_cost or model.max_batch_cost, self.engine.max_num_seqs or self._args.max_in_flight
        )
        self._model_runner = GPUDiffusionModelRunner(model, self.device, budget, self.engine)
        logger.info("%s: loaded on %s in %.1f s", self._args.stage, self.device, time.monotonic() - begun)

    def load(self) -> DiffusionModel:
        """Return the model on the device, with the stage's LoRA adapters, to be run by someone else."""
        share = self.engine.gpu_memory_utilization
        if self.device.type == "cuda" and share is not None:
            torch.cuda.set_per_process_memory_fraction(share, self._args.device_index)
        if self.device.type == "cpu" and self.engine.devices > 1:
            torch.set_num_threads(max(1, torch.get_num_threads() // self.engine.devices))
        load = cast("LoadDiffusionModel", named_object(self._component.implementation or "", object))
        chosen = replace(self._model, weights=self.engine.weights, offload_blocks=self.engine.offload_blocks)
        model = load(chosen, self.device, self.engine.dtype)
        self._check(model)
        if self.engine.lora_modules:
            try:
                cast("AdaptableModel", model).adapt(self.engine.lora_modules)
            except ConfigError as error:
                error.stage = error.stage or self._args.stage
                raise
        if self.engine.offload_blocks:
            cast("OffloadedModel", model).offload(self.device)
        return model

    def _check_devices(self) -> None:
        first, count = self._args.device_index or 0, torch.cuda.device_count()
        if self.device.type == "cuda" and count < first + self.engine.devices:
            message = f"{count} CUDA devices are visible; the stage uses {self.engine.devices}, from number {first} on"
            raise ConfigError(message, field="engine.devices", stage=self._args.stage)

    def _check(self, model: DiffusionModel) -> None:
        """Raise ConfigError naming what a loaded model lacks, because the first job would find it otherwise.

        Log it if the model can be resumed and its declaration does not say so.
        """
        name = f"{self._model.family}/{self._model.component}"
        missing = [each for each in ("check", "begin", "step", "finish") if not callable(getattr(model, each, None))]
        units = getattr(model, "max_batch_cost", None)
        if type(units) is not int or units < 1:
            missing.append("max_batch_cost, an integer of at least 1")
        if missing:
            raise ConfigError(f"{name} is no diffusion model: it has no {', no '.join(missing)}", field="component")
        for taken, protocol in _PROTOCOLS.items():
            if taken in self._component.takes and not isinstance(model, protocol):
                message = f"{name} is declared to take {taken} and is no {protocol.__name__}"
                raise ConfigError(message, field="component")
        is_resumable = isinstance(model, ResumableModel)
        if self._component.resumable and not is_resumable:
            raise ConfigError(f"{name} is declared resumable and has no save and resume", field="component")
        if is_resumable and not self._component.resumable:
            logger.warning("%s: %s can be resumed, and its declaration does not say so", self._args.stage, name)

    @property
    def ranks(self) -> Ranks | None:
        """The engine's second device; None where it has one alone."""
        return self._ranks

    @property
    def is_resumable(self) -> bool:
        """Whether the loaded model can be resumed. Raises EngineDead as ``model_runner`` does."""
        return isinstance(self.model_runner.model, ResumableModel)

    @property
    def model_runner(self) -> GPUDiffusionModelRunner:
        """The model runner of the loaded model. Raises EngineDead before ``load_model`` and after ``close``."""
        if self._model_runner is None:
            raise EngineDead("the model is not loaded", stage=self._args.stage)
        return self._model_runner

    def close(self) -> None:
        """Free the model; safe to call twice."""
        self._model_runner = None
        if self._ranks is not None:
            self._ranks.close()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
