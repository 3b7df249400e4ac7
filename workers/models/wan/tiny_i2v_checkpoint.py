"""Build a complete tiny Wan checkpoint whose videos begin with a picture, for tests and the demo.

    python -m workers.models.wan.tiny_i2v_checkpoint DIR --seed 0

Its parts are those of ``tiny_checkpoint``, but for transformers that see the begin beside the latents, and the higher
``boundary_ratio``, so that the second transformer takes over earlier.
"""

from __future__ import annotations

from pathlib import Path

from workers.models.tiny_directory import TinyDirectory, write_json
from workers.models.wan.family import CHANNELS
from workers.models.wan.model_index import PICTURE_CLASS
from workers.models.wan.tiny_checkpoint import INDEX, write_parts
from workers.models.wan.transformers import PICTURE_CHANNELS


def _write(directory: Path, seed: int) -> None:
    write_parts(directory, seed, CHANNELS + PICTURE_CHANNELS)
    index = {"_class_name": PICTURE_CLASS, "boundary_ratio": 0.9, "image_encoder": [None, None], **INDEX}
    write_json(directory / "model_index.json", {**index, "image_processor": [None, None]})


TINY = TinyDirectory(version=1, write=_write)
build_tiny_checkpoint = TINY.build

if __name__ == "__main__":
    TINY.main(__doc__)
