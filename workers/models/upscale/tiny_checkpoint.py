"""Build a complete tiny checkpoint of the family upscale with random weights, for tests and for a first look.

    python -m workers.models.upscale.tiny_checkpoint DIR --seed 0

It has 11,000 parameters in each of the networks that a stage config can list, and is built in a moment. Like the real
small network each has convolutions, slopes, a shuffle of pixels, and the picture itself added at the end. So what comes
out is the picture in blocks of 4 x 4, with noise on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from workers.models.tiny_directory import TinyDirectory
from workers.models.upscale.networks import SCALE, NetworkName

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WIDTH = 16  # channels between the convolutions
_OUTPUTS = 3 * SCALE * SCALE
_STRUCTURE = f"""7767517
8 9
Input picture 0 1 data
Split copies 1 2 data shown learned
Convolution first 1 1 learned first 0={_WIDTH} 1=3 4=1 5=1 6={3 * 9 * _WIDTH}
PReLU slopes 1 1 first bent 0={_WIDTH}
Convolution second 1 1 bent second 0={_OUTPUTS} 1=3 4=1 5=1 6={_WIDTH * 9 * _OUTPUTS}
PixelShuffle shuffle 1 1 second details 0={SCALE}
Interp blocks 1 1 shown enlarged 0=1 1={SCALE}.0 2={SCALE}.0
BinaryOp sum 2 1 details enlarged output
"""
_FLOAT32 = b"\0\0\0\0"  # ncnn's flag before a convolution's weights


def _write(directory: Path, seed: int) -> None:
    for number, name in enumerate(get_args(NetworkName)):
        (directory / f"{name}.param").write_text(_STRUCTURE, encoding="ascii")
        (directory / f"{name}.bin").write_bytes(_weights(np.random.default_rng([seed, number])))


def _weights(draw: np.random.Generator) -> bytes:
    return b"".join(
        [
            _FLOAT32,
            _bytes(draw.normal(0, 0.2, (_WIDTH, 3, 3, 3))),
            _bytes(np.zeros(_WIDTH)),
            _bytes(np.full(_WIDTH, 0.25)),  # slopes
            _FLOAT32,
            _bytes(draw.normal(0, 0.02, (_OUTPUTS, _WIDTH, 3, 3))),
            _bytes(np.zeros(_OUTPUTS)),
        ]
    )


def _bytes(values: NDArray[Any]) -> bytes:
    return values.astype("<f4").tobytes()


TINY = TinyDirectory(version=1, write=_write)
build_tiny_checkpoint = TINY.build

if __name__ == "__main__":
    TINY.main(__doc__)
