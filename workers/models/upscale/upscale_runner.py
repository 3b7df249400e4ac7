"""``UpscaleRunner``: enlarges pictures on threads of the worker's process, many at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

from omni_jobs.errors import ModelError, OutOfMemory
from workers.models.upscale.engine_settings import UpscaleEngine
from workers.models.upscale.enlarge import UpscalePrompt
from workers.models.upscale.networks import MOST_PIXELS, NETWORKS, SCALE, NetworkName
from workers.models.upscale.tiles import Tile, tiles_of
from workers.runners.cancellation import together
from workers.runners.declared_component import declared_component
from workers.runners.in_process_runner import InProcessRunner
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import OmniModelRunnerOutput, Progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workers.models.upscale.upscaler import Upscaler


class UpscaleRunner(InProcessRunner[UpscalePrompt, UpscaleEngine]):
    """Enlarges pictures with networks of Real-ESRGAN on ncnn.

    Pictures are cut into tiles that overlap, so that memory is bounded and no seams show. The tiles of all prompts in
    flight take turns on ``num_workers`` threads, so that a large picture holds no small one up, and each is enlarged
    alone, so that a picture does not depend on the company. ncnn computes without the interpreter's lock: the event
    loop runs on.
    """

    kind: ClassVar[str] = "upscale"  # of the stages that it runs; one of a plug-in has its own

    def __init__(self, args: OmniEngineArgs) -> None:
        """Take the stage's settings. Raises ConfigError for a stage without a model or with another engine's."""
        super().__init__(args)
        self._model, _ = declared_component(args, self.kind)
        self._upscalers: Mapping[str, Upscaler] = {}

    def threads(self) -> int:
        return self.engine.num_workers or super().threads()

    def load(self) -> None:
        from workers.models.upscale.upscaler import Upscaler  # loads ncnn

        self._upscalers = {name: Upscaler(self._model.path, name) for name in self.engine.networks}

    def free(self) -> None:
        self._upscalers = {}

    async def produce(self, prompt: UpscalePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Return ``pixels`` uint8 [4H, 4W, 3] of a prompt's picture, with progress in tiles.

        A prompt with an opacity also has ``opacity`` uint8 [4H, 4W]. The values name the network. A cancelled run ends
        with the tiles that threads have begun, of a second or two, which are dropped.

        Raises ModelError for a network that the stage does not list, more than ``MOST_PIXELS`` or a picture that breaks
        the network; OutOfMemory; and EngineDead once closed.
        """
        _check_pixels(prompt.pixels)
        if prompt.opacity is not None and prompt.opacity.shape != prompt.pixels.shape[:2]:
            raise ModelError(f"an opacity {list(prompt.opacity.shape)} is none of these pixels", field="opacity")
        name = prompt.parameters.network or self.engine.networks[0]
        upscaler = self._upscalers.get(name)
        if upscaler is None:
            listed = ", ".join(self.engine.networks)
            raise ModelError(f"the stage lists no network {name!r}; it lists {listed}", field="network")
        picture = await self._enlarged(upscaler, name, prompt, progress)
        outputs = {"pixels": picture}
        if prompt.opacity is not None:
            outputs["opacity"] = await self.on_thread(partial(enlarged_opacity, prompt.opacity))
        return OmniModelRunnerOutput(multimodal_outputs=outputs, values={"network": name})

    async def _enlarged(
        self, upscaler: Upscaler, name: NetworkName, prompt: UpscalePrompt, progress: ProgressSink
    ) -> NDArray[Any]:
        height, width, channels = prompt.pixels.shape
        tiles = tiles_of(height, width, NETWORKS[name].tile, NETWORKS[name].overlap)
        picture = _empty(SCALE * height, SCALE * width, channels)
        left, done = iter(tiles), 0
        progress(Progress(0, len(tiles), "tiles"))

        async def enlarge(left: Iterator[Tile]) -> None:
            nonlocal done
            for tile in left:
                part = tile.cut(prompt.pixels)
                enlarged = await self.on_thread(partial(upscaler.enlarge, part, faithful=prompt.parameters.faithful))
                tile.put(enlarged, picture)
                done += 1
                progress(Progress(done, len(tiles), "tiles"))

        await together([enlarge(left) for _ in range(min(self.threads(), len(tiles)))])
        return picture


def _check_pixels(pixels: NDArray[Any]) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ModelError(f"pixels must be uint8 [H, W, 3], not {pixels.dtype} {list(pixels.shape)}", field="pixels")
    if pixels.shape[0] * pixels.shape[1] > MOST_PIXELS:
        raise ModelError(
            f"the picture has {pixels.shape[1]}×{pixels.shape[0]} pixels; at most {MOST_PIXELS} are enlarged",
            field="pixels",
        )


def _empty(height: int, width: int, channels: int) -> NDArray[Any]:
    try:
        return np.empty((height, width, channels), np.uint8)
    except MemoryError as error:
        raise OutOfMemory(f"there is too little memory for {width}×{height} pixels") from error


def enlarged_opacity(opacity: NDArray[Any]) -> NDArray[Any]:
    """Return an opacity uint8 [H, W] four times as large, by bicubic interpolation: uint8 [4H, 4W]."""
    height, width = opacity.shape
    image = Image.fromarray(opacity).resize((SCALE * width, SCALE * height), Image.Resampling.BICUBIC)
    return np.asarray(image)
