"""The further codes of a frame are drawn by the job's seed and the frame's number alone."""

import torch

from workers.models.qwen3_omni.code_predictor import CodeChoice


def test_the_draws_of_a_frame_are_the_seeds_and_the_frames() -> None:
    seeds = (0, 1, 2**32 + 1, 2**63 - 1)
    drawn = {(seed, frame): CodeChoice(1.0, 50, 0.8, seed).draws(frame, 15) for seed in seeds for frame in (0, 1, 4)}
    assert len({tuple(each.tolist()) for each in drawn.values()}) == len(drawn)
    assert all(each.dtype == torch.float32 and 0 <= each.min() <= each.max() < 1 for each in drawn.values())
    assert torch.equal(drawn[1, 4], CodeChoice(0.5, 0, 1.0, 1).draws(4, 15))
