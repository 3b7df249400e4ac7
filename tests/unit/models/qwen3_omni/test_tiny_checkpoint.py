"""The tiny checkpoint: Transformers loads all of it, its roles are tokens, and its seed decides its weights."""

from pathlib import Path

from tests.services.checkpoint import TinyCheckpoints
from tests.unit.models.qwen_image.test_tiny_checkpoint import digests
from workers.models.qwen3_omni.tiny_checkpoint import SPEAKERS, build_tiny_checkpoint


def test_transformers_loads_every_weight(tiny_qwen3_omnis: TinyCheckpoints) -> None:
    from transformers import AutoProcessor, Qwen3OmniMoeForConditionalGeneration

    directory = tiny_qwen3_omnis(0)
    model, found = Qwen3OmniMoeForConditionalGeneration.from_pretrained(directory, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    processor = AutoProcessor.from_pretrained(directory)
    assert type(processor).__name__ == "Qwen3OmniMoeProcessor"
    config, tokenizer = model.config, processor.tokenizer
    assert tokenizer("<|im_start|>assistant\n")["input_ids"] == [
        config.im_start_token_id,
        config.assistant_token_id,
        10,
    ]
    assert tokenizer("user")["input_ids"] == [config.user_token_id]
    assert config.thinker_config.audio_token_id == tokenizer.convert_tokens_to_ids("<|audio_pad|>")
    assert tuple(config.talker_config.speaker_id) == SPEAKERS


def test_the_seed_decides_the_weights(tiny_qwen3_omnis: TinyCheckpoints, tmp_path: Path) -> None:
    zero, again = digests(tiny_qwen3_omnis(0)), digests(build_tiny_checkpoint(tmp_path / "again", seed=0))
    one = digests(tiny_qwen3_omnis(1))
    assert zero == again
    assert {name for name in zero if zero[name] != one[name]} == {"model.safetensors", "tiny_checkpoint.json"}
