"""The oracle is the right one: two ways round Transformers' trap agree, and the naive way differs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.oracles.reference import Reference, ReferenceResult, Way


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Reference:
    return Reference(tiny_checkpoint)


def _cases() -> dict[str, tuple[list[dict[str, Any]], list[Any]]]:
    generator = np.random.default_rng(1)
    audio = (generator.standard_normal(24_000) * 0.1).astype(np.float32)
    image = Image.fromarray(generator.integers(0, 256, (56, 84, 3), dtype=np.uint8))
    video = generator.integers(0, 256, (4, 56, 56, 3), dtype=np.uint8)

    def user(*kinds: str) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"type": kind, "media": n} for n, kind in enumerate(kinds)]
        return [{"role": "user", "content": [*parts, {"type": "text", "text": "Was ist das? 这是什么"}]}]

    return {
        "text": (user(), []),
        "audio": (user("audio"), [audio]),
        "image": (user("image"), [image]),
        "audio and image": (user("audio", "image"), [audio, image]),
        "video": (user("video"), [video]),
    }


@pytest.mark.parametrize("case", _cases())
def test_both_ways_agree(reference: Reference, case: str) -> None:
    messages, media = _cases()[case]
    mask = reference.generate(messages, media, seed=7)
    two = reference.generate(messages, media, seed=7, way=Way.BATCH_OF_TWO)
    assert mask.prompt_ids == two.prompt_ids
    assert mask.thinker_tokens == two.thinker_tokens
    assert mask.talker_codes == two.talker_codes
    assert _parts(mask)[0].shape == (len(mask.prompt_ids) + len(mask.thinker_tokens) - 1, 128)
    for one, other in zip(_parts(mask), _parts(two), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_the_naive_way_gives_other_codes(reference: Reference) -> None:
    """The trap is there: should this fail, Transformers mended it, and the oracle may be simpler."""
    messages, media = _cases()["text"]
    right = reference.generate(messages, media)
    naive = reference.generate(messages, media, way=Way.NAIVE)
    assert naive.thinker_tokens == right.thinker_tokens
    assert naive.talker_codes != right.talker_codes


def test_the_second_trap_is_there(reference: Reference) -> None:
    """Pictures under their own name reach the talker, which refuses them."""
    messages, media = _cases()["image"]
    inputs = reference._inputs(messages, media, Way.NAIVE)
    inputs["pixel_values"] = inputs.pop("thinker_pixel_values")
    with pytest.raises(ValueError, match="pixel_values"):
        reference.model.generate(**inputs, thinker_max_new_tokens=4, talker_max_new_tokens=4)


def test_text_alone_gives_the_same_tokens(reference: Reference) -> None:
    messages, media = _cases()["audio and image"]
    with_speech = reference.generate(messages, media)
    alone = reference.generate(messages, media, modalities=["text"])
    assert alone.thinker_tokens == with_speech.thinker_tokens
    assert alone.waveform is None


def test_the_seed_decides_the_noise_and_the_voice_the_codes(reference: Reference) -> None:
    messages, media = _cases()["text"]
    one, again = (reference.generate(messages, media, seed=1) for _ in range(2))
    other = reference.generate(messages, media, seed=2)
    ethan = reference.generate(messages, media, seed=1, voice="Ethan")
    assert torch.equal(_parts(one)[1], _parts(again)[1])
    assert not torch.allclose(_parts(one)[1], _parts(other)[1], atol=1e-3)
    assert one.talker_codes == other.talker_codes
    assert one.talker_codes != ethan.talker_codes


def _parts(result: ReferenceResult) -> tuple[torch.Tensor, torch.Tensor]:
    assert result.hidden_rows is not None
    assert result.waveform is not None
    return result.hidden_rows, result.waveform
