"""Prompts for Qwen-Image's denoising and decoding, and rows that are run by hand."""

from collections.abc import Sequence
from typing import Any

import torch

from workers.models.qwen_image.parameters import DrawParameters
from workers.runners.diffusion.model import DiffusionModel, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt

WIDTH = 128  # of the tiny text encoder's rows


def embeds(tokens: int, seed: int) -> torch.Tensor:
    """Return embeddings [T, H] such as a text encoder's."""
    return torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(1000 + seed))


def prompt(
    text: torch.Tensor | int = 7, negative: torch.Tensor | int | None = 5, *, seed: int = 0, **parameters: Any
) -> DiffusionPrompt:
    """Return a denoising's prompt; of a number of tokens, embeddings are drawn."""
    tensors = {"prompt_embeds": embeds(text, seed) if isinstance(text, int) else text}
    if negative is not None:
        tensors["negative_prompt_embeds"] = embeds(negative, 77) if isinstance(negative, int) else negative
    given = {"width": 64, "height": 48, "steps": 4} | parameters
    return DiffusionPrompt(tensors, {}, DrawParameters(**given), seed)


@torch.inference_mode()
def run(model: DiffusionModel, prompts: Sequence[DiffusionPrompt], late: Sequence[int] = ()) -> list[RowOutput]:
    """Run prompts together, as an engine does: row n comes ``late[n]`` steps after the first, and leaves when done."""
    outputs: dict[int, RowOutput] = {}
    under_way: dict[int, Any] = {}
    waiting = dict(enumerate(prompts))
    costs = [model.check(each) for each in prompts]
    tick = 0
    while len(outputs) < len(prompts):
        for number in [n for n in waiting if tick >= (late[n] if late else 0)]:
            under_way[number] = model.begin(waiting.pop(number))
        for group in {costs[n].group for n in under_way}:
            rows = [n for n in under_way if costs[n].group == group]
            model.step([under_way[n] for n in rows])
            done = [n for n in rows if under_way[n].steps_done == costs[n].steps]
            for place, output in model.finish([under_way[n] for n in done], lambda _: True):
                outputs[done[place]] = output
            for n in done:
                del under_way[n]
        tick += 1
    return [outputs[n] for n in range(len(prompts))]
