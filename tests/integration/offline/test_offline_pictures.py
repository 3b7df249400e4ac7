"""Pictures through OmniLLM: Qwen-Image's tiny checkpoint, every stage real, against Diffusers' own pipeline."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omni_jobs.errors import InvalidRequest
from tests.oracles.qwen_image import QwenImageReference
from workers.models.qwen_image.processors import Embeds2LatentsProcessor
from workers.offline import OmniLLM, OmniOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.types import StageInput

pytest.importorskip("vllm")

pytestmark = pytest.mark.long  # test_offline_edits shows what its stages do, with pictures as sources


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
    (artifact,) = output.artifacts.values()
    return np.asarray(Image.open(io.BytesIO(artifact.data)))


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> dict[int, DiffusionPrompt]:
    """Seed → the prompt of the denoise stage, made of what vLLM returned."""
    seen: dict[int, DiffusionPrompt] = {}
    make = Embeds2LatentsProcessor.__call__

    def note(processor: Embeds2LatentsProcessor, stage_input: StageInput) -> DiffusionPrompt:
        seen[stage_input.seed] = make(processor, stage_input)
        return seen[stage_input.seed]

    monkeypatch.setattr(Embeds2LatentsProcessor, "__call__", note)
    return seen


def test_pictures_are_those_of_the_reference(
    llm: OmniLLM, checkpoint: Path, prompts: dict[int, DiffusionPrompt]
) -> None:
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
        texts = {"prompt_embeds": case["text"], "negative_prompt_embeds": negative}
        embeds = {name: reference.embeds(text) for name, text in texts.items() if text is not None}
        of_vllm: Any = prompts[case["seed"]].tensors
        assert of_vllm.keys() == embeds.keys()
        for name, rows in embeds.items():
            assert of_vllm[name].shape == rows.shape
            assert (of_vllm[name] - rows).abs().max() <= 1e-5
        latents = reference.latents(
            embeds["prompt_embeds"],
            embeds.get("negative_prompt_embeds"),
            steps=case.get("steps", 4),
            scale=case.get("true_cfg_scale", 4.0),
            seed=case["seed"],
            **size,
        )
        expected = reference.pixels(latents, **size).numpy()
        assert picture(output).shape == expected.shape
        assert np.abs(picture(output).astype(int) - expected).max() <= 1


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
