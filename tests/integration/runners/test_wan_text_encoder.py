"""Wan's text encoder gives the rows of Diffusers' pipeline, of the same tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ModelError
from tests.integration.runners.qwen_image_prompts import run
from tests.oracles.wan import WanReference
from workers.models.wan.parameters import TextParameters
from workers.models.wan.prompts import WanPromptRenderer
from workers.models.wan.text_encoder import FilmTextEncoder, load_text_encoder
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

TEXTS = ["a red boat on a calm sea", "海上的一只小船", "  two\n lines &amp; &quot;more&quot; ", "", "x" * 510]


@pytest.fixture(scope="module")
def checkpoint(tiny_wans: Callable[[int], Path]) -> Path:
    return tiny_wans(0)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> FilmTextEncoder:
    return load_text_encoder(OmniModelConfig(checkpoint, "wan", "encode"), torch.device("cpu"), None)


def prompt(**ids: Any) -> DiffusionPrompt:
    return DiffusionPrompt(ids, {}, TextParameters(), 0)


def test_texts_are_encoded_as_by_the_reference(model: FilmTextEncoder, checkpoint: Path) -> None:
    reference, renderer = WanReference(checkpoint), WanPromptRenderer(checkpoint)
    ids = [torch.tensor(renderer.encode_text(text)) for text in TEXTS]
    prompts = [prompt(prompt_ids=each, negative_prompt_ids=ids[3]) for each in ids]
    for text, each, output in zip(TEXTS, ids, run(model, prompts), strict=True):
        expected = reference.embeds(text)
        rows: Any = output.tensors["prompt_embeds"]
        assert len(rows) == len(each) <= 512
        assert (rows - expected[: len(each)]).abs().max() <= 1e-5
        assert not expected[len(each) :].any()
        assert len(output.tensors["negative_prompt_embeds"]) == 1
        (alone,) = run(model, [prompt(prompt_ids=each)])
        assert torch.equal(alone.tensors["prompt_embeds"], rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "field"),
    [
        ({}, "prompt_ids"),
        ({"prompt_ids": [torch.tensor([1])]}, "prompt_ids"),
        ({"prompt_ids": torch.tensor([1.0])}, "prompt_ids"),
        ({"prompt_ids": torch.tensor([[1]])}, "prompt_ids"),
        ({"prompt_ids": torch.tensor([], dtype=torch.int64)}, "prompt_ids.shape"),
        ({"prompt_ids": torch.ones(513, dtype=torch.int64)}, "prompt_ids.shape"),
        ({"prompt_ids": torch.tensor([-1])}, "prompt_ids"),
        ({"prompt_ids": torch.tensor([1]), "negative_prompt_ids": torch.tensor([512])}, "negative_prompt_ids"),
    ],
)
def test_tokens_that_do_not_fit_are_refused_with_their_field(
    model: FilmTextEncoder, ids: dict[str, Any], field: str
) -> None:
    with pytest.raises(ModelError) as refused:
        model.check(prompt(**ids))
    assert refused.value.field == field
