"""The models of ``tests.trees.family``: what one makes of a seed, the other one makes again and compares."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omni_jobs.errors import ModelError
from omni_jobs.pipelines.stage_config import StageConfig
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.saved_row import SavedRow
from workers.stages.engine_args import OmniModelConfig
from workers.stages.flow_processor import FlowProcessor
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput, TensorTree, convert_tensors

STEPS = 3


def grown(seed: int) -> dict[str, TensorTree]:
    """Return a tensor, a list and a dict of tensors of many dtypes and shapes, which a seed decides."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2, 3, 4, generator=generator)
    return {
        "latents": drawn,
        "parts": [drawn[0].bfloat16(), torch.arange(seed % 7), torch.zeros(0, 5), drawn.sum()],
        "named": {"half": drawn.half(), "whole": (drawn * 9).to(torch.int64), "bytes": (drawn > 0).to(torch.uint8)},
    }


@dataclass
class TreeRow:
    """A row of either model."""

    seed: int
    trees: Mapping[str, TensorTree]
    steps_done: int = 0


class Grown:
    """A ``ResumableModel`` that makes the trees of the seed; so does its snapshot hold them."""

    max_batch_cost = 4

    def check(self, prompt: DiffusionPrompt[Any]) -> Cost:
        return Cost(1, STEPS, None)

    def begin(self, prompt: DiffusionPrompt[Any]) -> TreeRow:
        return TreeRow(prompt.seed, grown(prompt.seed))

    def step(self, rows: Sequence[TreeRow]) -> None:
        for row in rows:
            row.steps_done += 1

    def finish(self, rows: Sequence[TreeRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        for number, row in enumerate(rows):
            yield number, RowOutput(row.trees)

    def save(self, row: TreeRow) -> RowOutput:
        return RowOutput(row.trees, {"steps_done": row.steps_done})

    def resume(
        self, prompt: DiffusionPrompt[Any], tensors: Mapping[str, TensorTree], values: Mapping[str, Any]
    ) -> TreeRow:
        compare(tensors, prompt.seed)
        return TreeRow(prompt.seed, tensors, SavedRow(tensors, values).steps_done(STEPS))


class Read(Grown):
    """A ``DiffusionModel`` whose prompts have these trees. A row's picture is white."""

    def check(self, prompt: DiffusionPrompt[Any]) -> Cost:
        compare(prompt.tensors, prompt.seed)
        return Cost(1, STEPS, None)

    def finish(self, rows: Sequence[TreeRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        for number, _ in enumerate(rows):
            yield number, RowOutput({"pixels": torch.full((8, 8, 3), 255, dtype=torch.uint8)})


def load_grown(model: OmniModelConfig, device: torch.device, dtype: str | None) -> Grown:
    return Grown()


def load_read(model: OmniModelConfig, device: torch.device, dtype: str | None) -> Read:
    return Read()


def compare(found: Mapping[str, TensorTree], seed: int) -> None:
    """Raise ModelError naming the first tensor that is not the seed's to the bit."""
    expected = grown(seed)
    if set(found) != set(expected):
        raise ModelError(f"{sorted(found)} where {sorted(expected)} are due", field="tensors")
    for name, tree in expected.items():
        other = found[name]
        if type(tree) is not type(other):
            raise ModelError(f"{type(other).__name__} where {type(tree).__name__} is due", field=name)
        for place, (one, two) in enumerate(zip(_leaves(tree), _leaves(other), strict=True)):
            if one.dtype != two.dtype or not torch.equal(one, two):
                raise ModelError("not the same", field=f"{name}.{place}")


def _leaves(tree: TensorTree) -> list[torch.Tensor]:
    if isinstance(tree, dict):
        return [tree[name] for name in sorted(tree)]
    return tree if isinstance(tree, list) else [tree]


class GrowProcessor:
    """Makes the prompt of the first stage, which has nothing but the seed."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Need nothing."""

    def __call__(self, stage_input: StageInput[Any]) -> DiffusionPrompt[Any]:
        return DiffusionPrompt({}, {}, stage_input.parameters, stage_input.seed)


class ReadProcessor(FlowProcessor):
    """Hands all tensors of the payload on."""

    def __call__(self, stage_input: StageInput[Any]) -> DiffusionPrompt[Any]:
        trees = convert_tensors(self.information(stage_input, "latents").tensors, to_torch)
        return DiffusionPrompt(trees, {}, stage_input.parameters, stage_input.seed)
