"""``GPUDiffusionWorker``: a diffusion stage's device and model."""

import logging
import time
from typing import cast

import torch

from omni_jobs.errors import ConfigError, EngineDead
from omni_jobs.pipelines.declarations import ComponentDeclaration, family
from omni_jobs.pipelines.plugins import named_object
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.gpu_diffusion_model_runner import GPUDiffusionModelRunner
from workers.runners.diffusion.model import LoadDiffusionModel
from workers.runners.diffusion.step_budget import StepBudget
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

logger = logging.getLogger(__name__)


class GPUDiffusionWorker:
    """Owns a diffusion stage's device: loads the model onto it and frees it. For one thread."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Choose the device; load nothing yet. Raises ConfigError for a model or dtype that no diffusion stage runs."""
        self._model, component = _model_of(args)
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
        self._implementation = component.implementation or ""
        index = "" if args.device_index is None else f":{args.device_index}"
        self.device = torch.device(f"{args.device}{index}")
        self._args = args
        self._model_runner: GPUDiffusionModelRunner | None = None

    def load_model(self) -> None:
        """Load the model onto the device. Raises ConfigError when the checkpoint lacks a part of it."""
        begun = time.monotonic()
        share = self.engine.gpu_memory_utilization
        if self.device.type == "cuda" and share is not None:
            torch.cuda.set_per_process_memory_fraction(share, self._args.device_index)
        load = cast("LoadDiffusionModel", named_object(self._implementation, object))
        model = load(self._model, self.device, self.engine.dtype)
        budget = StepBudget(
            self.engine.max_batch_cost or model.max_batch_cost, self.engine.max_num_seqs or self._args.max_in_flight
        )
        self._model_runner = GPUDiffusionModelRunner(
            model, self.device, budget, preview_every_steps=self.engine.preview_every_steps
        )
        logger.info("%s: loaded on %s in %.1f s", self._args.stage, self.device, time.monotonic() - begun)

    @property
    def model_runner(self) -> GPUDiffusionModelRunner:
        """The model runner of the loaded model. Raises EngineDead before ``load_model`` and after ``close``."""
        if self._model_runner is None:
            raise EngineDead("the model is not loaded", stage=self._args.stage)
        return self._model_runner

    def close(self) -> None:
        """Free the model; safe to call twice."""
        self._model_runner = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _model_of(args: OmniEngineArgs) -> tuple[OmniModelConfig, ComponentDeclaration]:
    """Return the stage's model and its component's declaration. Raises ConfigError if no diffusion stage runs it."""
    if args.model is None:
        raise ConfigError("a diffusion stage needs a model", field="model", stage=args.stage)
    components = family(args.model.family).components
    declared = components.get(args.model.component)
    if declared is None or declared.runner != "diffusion" or declared.implementation is None:
        known = ", ".join(
            f"{args.model.family}/{name}" for name, each in components.items() if each.runner == "diffusion"
        )
        raise ConfigError(
            f"no diffusion model {args.model.family}/{args.model.component}; known: {known or 'none'}",
            field="component",
            stage=args.stage,
        )
    return args.model, declared
