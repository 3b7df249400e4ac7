"""``GPUDiffusionWorker``: a diffusion stage's device and model."""

import logging
import time
from collections.abc import Callable, Mapping

import torch

from omni_jobs.errors import ConfigError, EngineDead
from omni_jobs.pipelines.declarations import components_of
from workers.models.qwen2_5_omni.token2wav import Token2Wav, load_token2wav
from workers.runners.diffusion.gpu_diffusion_model_runner import GPUDiffusionModelRunner
from workers.stages.engine_args import OmniEngineArgs

logger = logging.getLogger(__name__)

# (architecture, component) of a stage's model → the function that loads it
_LOADERS: Mapping[tuple[str, str | None], Callable[..., Token2Wav]] = {
    ("qwen2_5_omni", "code2wav"): load_token2wav,
}


class GPUDiffusionWorker:
    """Owns a diffusion stage's device: loads the model onto it and frees it. For one thread."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Choose the device; load nothing yet. Raises ConfigError for a model or dtype that no diffusion stage runs."""
        model = args.model
        if (model.architecture, model.component) not in _LOADERS:
            known = ", ".join(f"{architecture}/{component}" for architecture, component in _LOADERS)
            raise ConfigError(
                f"no diffusion model {model.architecture}/{model.component}; known: {known}",
                field="component",
                stage=args.stage,
            )
        dtypes = components_of(model.architecture)[model.component].dtypes
        if dtypes is not None and args.engine.dtype not in (None, *dtypes):
            known = " or ".join(sorted(dtypes))
            raise ConfigError(
                f"{model.component} runs in {known}, not {args.engine.dtype}", field="engine.dtype", stage=args.stage
            )
        index = "" if args.device_index is None else f":{args.device_index}"
        self.device = torch.device(f"{args.device}{index}")
        self._args = args
        self._model_runner: GPUDiffusionModelRunner | None = None

    def load_model(self) -> None:
        """Load the model onto the device. Raises ConfigError when the checkpoint lacks a part of it."""
        begun = time.monotonic()
        share = self._args.engine.gpu_memory_utilization
        if self.device.type == "cuda" and share is not None:
            torch.cuda.set_per_process_memory_fraction(share, self._args.device_index)
        model = self._args.model
        load = _LOADERS[model.architecture, model.component]
        self._model_runner = GPUDiffusionModelRunner(load(model.path, self.device, voices=model.voices))
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
