"""The oracle is the right one: it differs from Transformers behind a long video, and nowhere else."""

from pathlib import Path

import pytest
import torch

from tests.oracles.qwen2_5_vl import QwenVlReference
from tests.oracles.vision_cases import CASES
from tests.services.checkpoint import TinyCheckpoints

TOKENS = 8


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_vls: TinyCheckpoints) -> Path:
    return tiny_qwen_vls(0)


def test_it_is_transformers_but_for_what_follows_a_long_video(checkpoint: Path) -> None:
    """The trap is there: should this fail, Transformers mended it, and the oracle may be simpler."""
    references = [QwenVlReference(checkpoint, mends=mends) for mends in (True, False)]
    for name, case in CASES.items():
        mended, plain = (each.generate(case.messages, case.media, TOKENS) for each in references)
        is_alike = name != "long video"
        assert torch.equal(mended.positions, plain.positions) == is_alike, name
        assert torch.equal(mended.hidden_rows, plain.hidden_rows) == is_alike, name
        if is_alike:
            assert mended.tokens == plain.tokens, name
