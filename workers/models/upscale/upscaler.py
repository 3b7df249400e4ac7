"""``Upscaler``: a loaded network, which enlarges one tile of a picture at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ncnn  # type: ignore[import-untyped]
import numpy as np
from PIL import Image

from omni_jobs.errors import ConfigError, ModelError, OutOfMemory
from workers.models.upscale.networks import SCALE, NetworkName

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INPUT, _OUTPUT = "data", "output"  # the names that Real-ESRGAN's networks give both
_NO_MEMORY = -100  # ncnn's
_TRIAL = np.zeros((8, 12, 3), np.uint8)


class Upscaler:
    """A loaded network of Real-ESRGAN. Its calls block without the interpreter's lock, and may come from many threads.

    Each call computes on its own thread alone, in float32, so that the same tile always gives the same pixels.
    """

    def __init__(self, directory: Path, name: NetworkName) -> None:
        """Load ``NAME.param`` and ``NAME.bin``, and try them on a small picture.

        Raises ConfigError naming the file that is missing or wrong, and OutOfMemory.
        """
        self.name = name
        structure, weights = directory / f"{name}.param", directory / f"{name}.bin"
        for file in (structure, weights):
            if not file.is_file():
                raise ConfigError("the checkpoint lacks this file", file=str(file))
        self._net = ncnn.Net()
        self._net.opt.num_threads = 1
        self._net.opt.use_vulkan_compute = False
        for option in ("use_fp16_storage", "use_fp16_arithmetic", "use_fp16_packed", "use_bf16_storage"):
            setattr(self._net.opt, option, False)  # which of them a processor has would change the pixels
        if self._net.load_param(str(structure)) != 0:
            raise ConfigError("not the structure of an ncnn network", file=str(structure))
        if [*self._net.input_names(), *self._net.output_names()] != [_INPUT, _OUTPUT]:
            raise ConfigError(f"the network's input is not {_INPUT}, or its output not {_OUTPUT}", file=str(structure))
        if self._net.load_model(str(weights)) != 0:
            raise ConfigError(f"not the weights of the network in {structure.name}", file=str(weights))
        try:
            self.enlarge(_TRIAL, faithful=False)
        except ModelError as error:
            raise ConfigError(f"the network does not work: {error.message}", file=str(weights)) from error

    def enlarge(self, tile: NDArray[Any], *, faithful: bool) -> NDArray[Any]:
        """Return a tile uint8 [H, W, 3], RGB, four times as large: uint8 [4H, 4W, 3].

        ``faithful``: correct the network's colours, so that the mean of each 4 x 4 pixels comes close to the pixel that
        they are made of. Raises ModelError where the network breaks, and OutOfMemory.
        """
        try:
            picture = np.ascontiguousarray(tile.transpose(2, 0, 1), np.float32)
            enlarged = self._run(picture / 255) * 255
            if faithful:
                enlarged += _resampled(picture - _means(enlarged.clip(0, 255)))
            return np.ascontiguousarray(np.rint(enlarged.clip(0, 255)).astype(np.uint8).transpose(1, 2, 0))
        except MemoryError as error:
            raise OutOfMemory("there is too little memory for a tile of this picture") from error

    def _run(self, picture: NDArray[Any]) -> NDArray[Any]:
        """Return the network's output float32 [3, 4H, 4W] for a picture float32 [3, H, W], full scale 1."""
        extractor = self._net.create_extractor()
        extractor.input(_INPUT, ncnn.Mat(picture))
        status, output = extractor.extract(_OUTPUT)
        if status == _NO_MEMORY:
            raise OutOfMemory("there is too little memory for a tile of this picture")
        if status != 0:
            raise ModelError(f"the network {self.name} broke with ncnn's status {status}")
        enlarged = np.array(output, np.float32)
        channels, height, width = picture.shape
        if enlarged.shape != (channels, SCALE * height, SCALE * width):
            raise ModelError(f"the network {self.name} made {list(enlarged.shape)} of {list(picture.shape)}")
        if not np.isfinite(enlarged).all():
            raise ModelError(f"the network {self.name} made values that are not finite")
        return enlarged


def _means(enlarged: NDArray[Any]) -> NDArray[Any]:
    """Return the means [3, H, W] of the 4 x 4 pixels that are made of each pixel."""
    channels, height, width = enlarged.shape
    blocks = enlarged.reshape(channels, height // SCALE, SCALE, width // SCALE, SCALE)
    means: NDArray[Any] = blocks.mean(axis=(2, 4), dtype=np.float32)
    return means


def _resampled(errors: NDArray[Any]) -> NDArray[Any]:
    """Return values [3, H, W] as [3, 4H, 4W] by bicubic interpolation."""
    _, height, width = errors.shape
    size = (SCALE * width, SCALE * height)
    return np.stack([np.asarray(Image.fromarray(each).resize(size, Image.Resampling.BICUBIC)) for each in errors])
