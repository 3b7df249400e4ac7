import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from omni_jobs.errors import ConfigError
from workers.models.qwen2_5_omni.tiny_checkpoint import SPEAKERS, build_tiny_checkpoint
from workers.models.tiny_directory import MARKER


def _weights(directory: Path) -> dict[str, torch.Tensor]:
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def test_all_parts_stand_under_their_prefixes(tiny_checkpoint: Path) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    assert {"thinker_config", "talker_config", "token2wav_config"} <= config.keys()
    weights = _weights(tiny_checkpoint)
    assert {key.split(".")[0] for key in weights} == {"thinker", "talker", "token2wav"}
    talker = config["talker_config"]
    assert talker["hidden_size"] != talker["num_attention_heads"] * talker["head_dim"]
    speakers = torch.load(tiny_checkpoint / "spk_dict.pt", weights_only=True)
    assert tuple(speakers) == SPEAKERS


def test_transformers_loads_every_weight(tiny_checkpoint: Path) -> None:
    from transformers import Qwen2_5OmniForConditionalGeneration

    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(tiny_checkpoint)
    weights = _weights(tiny_checkpoint)
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[key], tensor) for key, tensor in model.state_dict().items())
    assert tuple(model.speaker_map) == SPEAKERS


def test_any_script_survives_the_tokenizer_and_the_template(tiny_checkpoint: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import Qwen2_5OmniProcessor

    processor = Qwen2_5OmniProcessor.from_pretrained(tiny_checkpoint)
    text = "你好 مرحبا 🎉 \n\t ñ"
    message = {"role": "user", "content": [{"type": "audio", "media": 0}, {"type": "text", "text": text}]}
    prompt = processor.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    assert prompt == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n<|audio_bos|><|AUDIO|><|audio_eos|>{text}<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = processor.tokenizer(prompt)["input_ids"]
    assert processor.tokenizer.decode(ids) == prompt
    # The API counts tokens with the bare library.
    assert Tokenizer.from_file(str(tiny_checkpoint / "tokenizer.json")).encode(prompt).ids == ids


def test_the_seed_decides_the_weights(tiny_checkpoints: Callable[[int], Path], tmp_path: Path) -> None:
    zero, one = _weights(tiny_checkpoints(0)), _weights(tiny_checkpoints(1))
    again = _weights(build_tiny_checkpoint(tmp_path / "again", seed=0))
    assert all(torch.equal(zero[key], again[key]) for key in zero)
    assert not torch.equal(zero["thinker.lm_head.weight"], one["thinker.lm_head.weight"])


def test_it_is_built_once_and_anew_for_another_seed(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "checkpoint"
    build_tiny_checkpoint(directory, seed=3)
    weights = directory / "model.safetensors"
    built = weights.stat().st_mtime_ns
    build_tiny_checkpoint(directory, seed=3)
    assert weights.stat().st_mtime_ns == built
    build_tiny_checkpoint(directory, seed=4)
    assert json.loads((directory / MARKER).read_text())["seed"] == 4
    assert [path.name for path in directory.parent.iterdir()] == ["checkpoint"]


def test_several_may_build_at_once(tmp_path: Path) -> None:
    build_tiny_checkpoint(tmp_path / "checkpoint", seed=0)
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: build_tiny_checkpoint(tmp_path / "checkpoint", seed=1), range(3)))
    assert set(paths) == {tmp_path / "checkpoint"}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert json.loads((tmp_path / "checkpoint" / MARKER).read_text())["seed"] == 1


def test_it_never_overwrites_another_directory(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep me")
    with pytest.raises(ConfigError, match="no tiny checkpoint"):
        build_tiny_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="no tiny checkpoint"):
        build_tiny_checkpoint(tmp_path / "precious.txt")
    assert (tmp_path / "precious.txt").read_text() == "keep me"
