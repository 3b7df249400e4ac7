"""How much a stage made and heard: tokens, seconds of sound, pictures, frames."""

from typing import Any

import numpy as np
import pytest

from workers.stages.made import made_by
from workers.stages.types import EncodedOutput, OmniModelRunnerOutput

TOKENS = {"prompt_tokens": 3, "completion_tokens": 4}


@pytest.mark.parametrize(
    ("output", "tokens", "made"),
    [
        ({}, {}, {}),
        ({}, TOKENS, TOKENS),
        ({}, {"prompt_tokens": 3, "completion_tokens": 0, "cached_tokens": 9}, {"prompt_tokens": 3}),
        (
            {"multimodal_outputs": {"waveform": np.zeros(36_000, np.float32)}, "values": {"sampling_rate": 24_000}},
            {},
            {"sound_s": 1.5},
        ),
        ({"multimodal_outputs": {"waveform": np.zeros(9, np.float32)}, "values": {"sampling_rate": 0}}, {}, {}),
        ({"multimodal_outputs": {"waveform": np.zeros(9, np.float32)}, "values": {"sampling_rate": "x"}}, {}, {}),
        ({"multimodal_outputs": {"pixels": np.zeros((8, 8, 3), np.uint8)}}, {}, {"pictures": 1}),
        ({"multimodal_outputs": {"pixels": np.zeros((5, 8, 8, 3), np.uint8)}}, {}, {"frames": 5}),
        ({"multimodal_outputs": {"pixels": [1, 2]}}, {}, {}),
        ({"encoded": {"image": EncodedOutput(b"x", "png")}}, TOKENS, {"pictures": 1, **TOKENS}),
        ({"encoded": {"audio": EncodedOutput(b"x", "mp3")}}, {}, {}),
        (
            {"result": {"transcripts": [{"duration_s": 2.5}, {"duration_s": None}, {"duration_s": 1}]}},
            {},
            {"heard_s": 3.5},
        ),
        ({"result": {"transcripts": "of another package"}}, {}, {}),
        ({"result": {"transcripts": [3, {"duration_s": "x"}, {"duration_s": True}]}}, {}, {}),
    ],
)
def test_what_was_made(output: dict[str, Any], tokens: dict[str, int], made: dict[str, float]) -> None:
    assert made_by(OmniModelRunnerOutput(**output), tokens) == made


def test_tensors_of_torch_count_alike() -> None:
    torch = pytest.importorskip("torch")
    output = OmniModelRunnerOutput(multimodal_outputs={"waveform": torch.zeros(8)}, values={"sampling_rate": 16})
    assert made_by(output, {}) == {"sound_s": 0.5}
