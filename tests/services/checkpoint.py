"""The tiny checkpoint, one per seed and session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.oracles.causal_lm import build_causal_lm
from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint

TinyCheckpoints = Callable[[int], Path]


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """``tiny_checkpoints(seed)``: the checkpoint directory of that seed."""
    root = tmp_path_factory.mktemp("tiny_checkpoints")
    return lambda seed: build_tiny_checkpoint(root / f"seed_{seed}", seed=seed)


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_checkpoints: TinyCheckpoints) -> Path:
    """The checkpoint of seed 0."""
    return tiny_checkpoints(0)


@pytest.fixture(scope="session")
def tiny_causal_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny causal language model's checkpoint."""
    return build_causal_lm(tmp_path_factory.mktemp("tiny_causal_lm"))
