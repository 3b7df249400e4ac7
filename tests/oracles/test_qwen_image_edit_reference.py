"""The mistake of Diffusers' QwenImageEditPlusPipeline 0.40 with Transformers 5 that its oracle works around."""

from collections.abc import Callable
from pathlib import Path

import torch

from tests.integration.runners.qwen_image_edits import picture
from tests.oracles.qwen_image_edit import QwenImageEditReference


def test_tokens_of_pictures_get_the_positions_of_a_text(tiny_qwen_image_edits: Callable[[int], Path]) -> None:
    """Transformers takes rows and columns for positions only where it is told which tokens are a picture's."""
    references = [QwenImageEditReference(tiny_qwen_image_edits(0), tell_pictures=told) for told in (False, True)]
    seen: list[torch.Tensor | None] = []

    def note(_: torch.nn.Module, __: object, given: dict[str, torch.Tensor | None]) -> None:
        seen.append(given["position_ids"])

    rows = []
    for reference in references:
        reference.pipeline.text_encoder.model.language_model.register_forward_pre_hook(note, with_kwargs=True)
        rows.append(reference.embeds_of("make it red", [picture(64, 48)]))
    assert seen[0] is None
    assert seen[1] is not None
    assert not torch.equal(seen[1][1], seen[1][2])  # rows and columns
    assert (rows[0] - rows[1]).abs().max() > 0.01
