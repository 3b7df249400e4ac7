"""The tiny checkpoints, one of each model per seed and session.

A fixture imports what builds its checkpoint only when a test asks for it, because that brings torch with it: a run of
tests that need none starts in a second.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

TinyCheckpoints = Callable[[int], Path]


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """``tiny_checkpoints(seed)``: the checkpoint directory of that seed."""
    from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint

    root = tmp_path_factory.mktemp("tiny_checkpoints")
    return lambda seed: build_tiny_checkpoint(root / f"seed_{seed}", seed=seed)


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_checkpoints: TinyCheckpoints) -> Path:
    """The checkpoint of seed 0."""
    return tiny_checkpoints(0)


@pytest.fixture(scope="session")
def tiny_qwen3_omnis(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """``tiny_qwen3_omnis(seed)``: the directory of the tiny Qwen3-Omni checkpoint of that seed."""
    from workers.models.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint

    root = tmp_path_factory.mktemp("tiny_qwen3_omnis")
    return lambda seed: build_tiny_checkpoint(root / f"seed_{seed}", seed=seed)


@pytest.fixture(scope="session")
def tiny_causal_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny causal language model's checkpoint."""
    from tests.oracles.causal_lm import build_causal_lm

    return build_causal_lm(tmp_path_factory.mktemp("tiny_causal_lm"))


@pytest.fixture(scope="session")
def tiny_tool_caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny causal language model's checkpoint that calls tools."""
    from tests.oracles.tool_caller import build_tool_caller

    return build_tool_caller(tmp_path_factory.mktemp("tiny_tool_caller"))


@pytest.fixture(scope="session")
def tiny_qwen_images(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """``tiny_qwen_images(seed)``: the directory of the tiny Qwen-Image checkpoint of that seed."""
    from workers.models.qwen_image.tiny_checkpoint import build_tiny_checkpoint

    root = tmp_path_factory.mktemp("tiny_qwen_images")
    return lambda seed: build_tiny_checkpoint(root / f"seed_{seed}", seed=seed)


@pytest.fixture(scope="session")
def tiny_qwen_image_edits(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """``tiny_qwen_image_edits(seed)``: the directory of the tiny Qwen-Image-Edit checkpoint of that seed."""
    from workers.models.qwen_image.tiny_edit_checkpoint import build_tiny_checkpoint

    root = tmp_path_factory.mktemp("tiny_qwen_image_edits")
    return lambda seed: build_tiny_checkpoint(root / f"seed_{seed}", seed=seed)


@pytest.fixture(scope="session")
def tiny_glm_images(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """``tiny_glm_images(seed)``: the directory of the tiny GLM-Image checkpoint of that seed."""
    from workers.models.glm_image.tiny_checkpoint import build_tiny_checkpoint

    root = tmp_path_factory.mktemp("tiny_glm_images")
    return lambda seed: build_tiny_checkpoint(root / f"seed_{seed}", seed=seed)


@pytest.fixture(scope="session")
def tiny_qwen_vls(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """``tiny_qwen_vls(seed)``: the directory of the tiny Qwen2.5-VL checkpoint of that seed."""
    from workers.models.qwen2_5_vl.tiny_checkpoint import build_tiny_checkpoint

    root = tmp_path_factory.mktemp("tiny_qwen_vls")
    return lambda seed: build_tiny_checkpoint(root / f"seed_{seed}", seed=seed)


@pytest.fixture(scope="session")
def tiny_wans(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """``tiny_wans(seed)``: the directory of the tiny Wan checkpoint of that seed."""
    from workers.models.wan.tiny_checkpoint import build_tiny_checkpoint

    root = tmp_path_factory.mktemp("tiny_wans")
    return lambda seed: build_tiny_checkpoint(root / f"seed_{seed}", seed=seed)


@pytest.fixture(scope="session")
def tiny_wan_i2vs(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoints:
    """``tiny_wan_i2vs(seed)``: the directory of the tiny Wan checkpoint of that seed that begins with a picture."""
    from workers.models.wan.tiny_i2v_checkpoint import build_tiny_checkpoint

    root = tmp_path_factory.mktemp("tiny_wan_i2vs")
    return lambda seed: build_tiny_checkpoint(root / f"seed_{seed}", seed=seed)
