"""The tiny checkpoint: Transformers loads all of it, and its seed decides its weights."""

from pathlib import Path

from safetensors.torch import load_file

from tests.services.checkpoint import TinyCheckpoints
from tests.unit.models.qwen_image.test_tiny_checkpoint import digests
from workers.models.qwen2_5_vl.tiny_checkpoint import build_tiny_checkpoint


def test_transformers_loads_every_weight(tiny_qwen_vls: TinyCheckpoints) -> None:
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    directory = tiny_qwen_vls(0)
    model, found = Qwen2_5_VLForConditionalGeneration.from_pretrained(directory, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert len(load_file(directory / "model.safetensors")) == len(model.state_dict())
    processor = AutoProcessor.from_pretrained(directory)
    assert type(processor).__name__ == "Qwen2_5_VLProcessor"
    assert model.config.image_token_id == processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert model.config.video_token_id == processor.tokenizer.convert_tokens_to_ids("<|video_pad|>")


def test_the_seed_decides_the_weights(tiny_qwen_vls: TinyCheckpoints, tmp_path: Path) -> None:
    zero, again = digests(tiny_qwen_vls(0)), digests(build_tiny_checkpoint(tmp_path / "again", seed=0))
    one = digests(tiny_qwen_vls(1))
    assert zero == again
    assert {name for name in zero if zero[name] != one[name]} == {"model.safetensors", "tiny_checkpoint.json"}
