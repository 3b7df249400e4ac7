"""The tiny checkpoint: Diffusers loads all of it, and its seed decides its weights."""

from collections.abc import Callable
from pathlib import Path

from tests.unit.models.qwen_image.test_tiny_checkpoint import digests
from workers.models.qwen_image.tiny_edit_checkpoint import build_tiny_checkpoint


def test_diffusers_loads_all_of_it(tiny_qwen_image_edits: Callable[[int], Path]) -> None:
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(tiny_qwen_image_edits(0), local_files_only=True)
    assert type(pipeline).__name__ == "QwenImageEditPlusPipeline"
    assert None not in pipeline.components.values()
    assert pipeline.transformer.config.zero_cond_t
    assert pipeline.text_encoder.config.vision_config.depth == 2
    image = pipeline.processor.image_processor
    assert (image.patch_size, image.merge_size) == (14, 2)


def test_the_seed_decides_the_weights(tiny_qwen_image_edits: Callable[[int], Path], tmp_path: Path) -> None:
    zero, again = digests(tiny_qwen_image_edits(0)), digests(build_tiny_checkpoint(tmp_path / "again", seed=0))
    one = digests(tiny_qwen_image_edits(1))
    assert zero == again
    changed = {name for name in zero if zero[name] != one[name]}
    assert {name for name in changed if name.endswith(".json")} == {"tiny_checkpoint.json"}
    assert len(changed) == 4
