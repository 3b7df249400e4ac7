"""The positions of a prompt and of its grids' tokens, as Transformers has them; grids that do not fit."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from transformers import GlmImageForConditionalGeneration

from omni_jobs.errors import ModelError
from tests.services.checkpoint import TinyCheckpoints
from workers.models.glm_image.grids import grids_of
from workers.models.glm_image.language_model import GlmImageLanguageModel

MODEL: Any = SimpleNamespace(_max_model_len=8192, config=SimpleNamespace(max_position_embeddings=1100))


@pytest.mark.parametrize("size", [(64, 64), (64, 1024), (1024, 96)])
def test_positions_are_those_of_the_reference(tiny_glm_images: TinyCheckpoints, size: tuple[int, int]) -> None:
    reference: Any = GlmImageForConditionalGeneration.from_pretrained(tiny_glm_images(0) / "vision_language_encoder")
    grids = grids_of(*size)
    prompt = torch.tensor([[16_600, 16_601, 16_602, 16_384]])
    in_their_order = torch.tensor([[1, *grids.target], [1, *grids.preview]])
    of_prompt, _ = reference.model.get_rope_index(prompt, in_their_order)
    of_tokens = reference.model._cached_decode_position_ids[0]  # and of the end
    positions, delta = GlmImageLanguageModel.load_information(MODEL, {"grids": torch.tensor(grids)}, 4)
    assert torch.equal(positions, torch.cat([of_prompt[:, 0], of_tokens[:, :-1]], dim=1))
    assert positions.shape[1] + delta == of_tokens[0, -1]
    assert GlmImageLanguageModel.information_positions(MODEL, (positions, delta)) == (positions, delta)


@pytest.mark.parametrize("shapes", [[(2, 3)], [(4, 2), (1, 5)], [(3, 3), (2, 2), (1, 1)]])
def test_positions_with_source_pictures_are_those_of_the_reference(
    tiny_glm_images: TinyCheckpoints, shapes: list[tuple[int, int]]
) -> None:
    reference: Any = GlmImageForConditionalGeneration.from_pretrained(tiny_glm_images(0) / "vision_language_encoder")
    ids, sources = [16_600], []
    for height, width in shapes:
        sources.append([len(ids) + 1, height, width])
        ids += [16_384, *range(height * width), 16_385, 16_601]
    ids += [16_602, 16_384]
    grids = [[1, *shape] for shape in [*shapes, (3, 2)]]
    of_prompt, _ = reference.model.get_rope_index(torch.tensor([ids]), torch.tensor(grids))
    of_tokens = reference.model._cached_decode_position_ids[0]
    information = {"grids": torch.tensor([[3, 2]]), "sources": torch.tensor(sources)}
    positions, delta = GlmImageLanguageModel.load_information(MODEL, information, len(ids))
    assert torch.equal(positions, torch.cat([of_prompt[:, 0], of_tokens[:, :-1]], dim=1))
    assert positions.shape[1] + delta == of_tokens[0, -1]


@pytest.mark.parametrize(
    "sources",
    [
        [[1, 2, 2]],
        torch.tensor([1, 2, 2]),
        torch.tensor([[1, 2]]),
        torch.tensor([[1.0, 2, 2]]),
        torch.tensor([[-1, 2, 2]]),
        torch.tensor([[1, 0, 2]]),
        torch.tensor([[1, 4, 5]]),
        torch.tensor([[1, 2, 2], [4, 2, 2]]),
    ],
)
def test_source_pictures_that_are_no_parts_of_the_prompt_are_refused(sources: Any) -> None:
    with pytest.raises(ModelError) as refused:
        GlmImageLanguageModel.load_information(MODEL, {"grids": torch.tensor([[2, 2]]), "sources": sources}, 20)
    assert refused.value.field == "sources"


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        (None, "is due"),
        ([[2, 2]], "is due"),
        (torch.tensor([[2.0, 2.0]]), "is due"),
        (torch.tensor([2, 2]), "is due"),
        (torch.tensor([[2, 2, 2]]), "is due"),
        (torch.zeros(0, 2, dtype=torch.int64), "without tokens"),
        (torch.tensor([[0, 2]]), "without tokens"),
        (torch.tensor([[2, -1]]), "without tokens"),
        (torch.tensor([[90, 92]]), "8284 tokens"),
        (torch.tensor([[1, 4097], [1, 301]]), "positions up to"),
    ],
)
def test_grids_that_do_not_fit_are_refused(grids: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as refused:
        GlmImageLanguageModel.load_information(MODEL, {"grids": grids}, 4)
    assert refused.value.field == "grids"
