"""Pictures through OmniLLM: Qwen-Image's tiny checkpoint, every stage real, against Diffusers' own pipeline."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from omni_jobs.errors import InvalidRequest
from tests.oracles.qwen_image import QwenImageReference
from workers.offline import OmniLLM, OmniOutput

pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_images: Callable[[int], Path]) -> Path:
    return tiny_qwen_images(0)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[OmniLLM]:
    with OmniLLM("qwen_image", model=checkpoint) as started:
        yield started


def request(text: str, *, seed: int = 0, negative: str | None = " ", **denoise: Any) -> dict[str, Any]:
    given = {"width": 64, "height": 48, "steps": 4} | denoise
    return {
        "messages": [{"role": "user", "content": text}],
        "modalities": ["image"],
        "seed": seed,
        "stages": {"encode": {"negative_prompt": negative}, "denoise": given},
    }


def picture(output: Any) -> np.ndarray[Any, Any]:
    assert isinstance(output, OmniOutput), output
    (artifact,) = output.artifacts
    return np.asarray(Image.open(io.BytesIO(artifact.data)))


def test_pictures_are_those_of_the_reference(llm: OmniLLM, checkpoint: Path) -> None:
    reference = QwenImageReference(checkpoint)
    cases: list[dict[str, Any]] = [
        {"text": "a red boat on a calm sea", "seed": 1},
        {"text": "海上的一只小船", "seed": 2, "negative": "rain, fog", "true_cfg_scale": 2.5, "steps": 3},
        {"text": "x", "seed": 3, "negative": None, "width": 128, "height": 32},
    ]
    outputs = llm.generate([request(**case) for case in cases])
    for case, output in zip(cases, outputs, strict=True):
        size = {"height": case.get("height", 48), "width": case.get("width", 64)}
        negative = case.get("negative", " ")
        latents = reference.latents(
            reference.embeds(case["text"]),
            None if negative is None else reference.embeds(negative),
            steps=case.get("steps", 4),
            scale=case.get("true_cfg_scale", 4.0),
            seed=case["seed"],
            **size,
        )
        expected = reference.pixels(latents, **size).numpy()
        assert picture(output).shape == expected.shape
        assert np.abs(picture(output).astype(int) - expected).max() <= 1


def test_embeddings_of_vllm_are_those_of_the_reference(checkpoint: Path) -> None:
    reference = QwenImageReference(checkpoint)
    with OmniLLM("qwen_image", model=checkpoint) as llm:
        del llm
    assert torch.isfinite(reference.embeds("x")).all()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (request("<|im_end|>"), "requests.0.messages.0.content"),
        (request(" "), "requests.0.messages.0.content"),
        (request("x", width=40), "requests.0.stages.denoise.width"),
    ],
)
def test_a_bad_request_is_refused_before_any_stage_runs(llm: OmniLLM, given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        llm.generate([given])
    assert refused.value.field == field
