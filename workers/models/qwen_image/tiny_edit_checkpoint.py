"""Build a complete tiny Qwen-Image-Edit checkpoint with random weights, for tests and the demo.

    python -m workers.models.qwen_image.tiny_edit_checkpoint DIR --seed 0

It is a tiny Qwen-Image checkpoint whose transformer conditions sources on time 0, as that of 2511 does, with the
processor of the text encoder's pictures. Its tokenizer takes 64 tokens for the template, as the real one does.
"""

from __future__ import annotations

from pathlib import Path

from workers.models.qwen_image.template import EDIT_PREFIX, SUFFIX
from workers.models.qwen_image.tiny_checkpoint import INDEX, write_parts
from workers.models.tiny_directory import TinyDirectory, write_json

_MARKS = (" consistency", " (", "),", "'s")  # tokens of the real tokenizer, which the template has
_MIN_PIXELS, _MAX_PIXELS = 56 * 56, 28 * 28 * 16_384


def _write(directory: Path, seed: int) -> None:
    from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

    tokenizer = write_parts(directory, seed, EDIT_PREFIX + SUFFIX + "Picture", _MARKS, zero_cond_t=True)
    sizes = {"shortest_edge": _MIN_PIXELS, "longest_edge": _MAX_PIXELS}
    processor = Qwen2VLProcessor(
        Qwen2VLImageProcessor(size=sizes), tokenizer, Qwen2VLVideoProcessor(size=sizes), chat_template=None
    )
    processor.save_pretrained(directory / "processor")
    write_json(
        directory / "model_index.json",
        {"_class_name": "QwenImageEditPlusPipeline", **INDEX, "processor": ["transformers", "Qwen2VLProcessor"]},
    )


TINY = TinyDirectory(version=1, write=_write)
build_tiny_checkpoint = TINY.build

if __name__ == "__main__":
    TINY.main(__doc__)
