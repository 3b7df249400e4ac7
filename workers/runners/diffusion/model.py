"""Protocols that a diffusion model implements, so that the diffusion engine runs it without knowing what it makes.

    load(model, device, dtype) → DiffusionModel     a family's declaration names this function as text
    check(prompt) → Cost                            called for each prompt before it waits
    begin(prompts) → DiffusionBatch                 a batch; the engine then calls step, keep and at last finish

The engine chooses the batches, and between two steps it drops the rows that nobody waits for any more. It calls
``check`` on its event loop, everything else on one thread. Examples: workers.models.qwen2_5_omni.code2wav, and
tests/example_diffusion, which docs/models.md explains.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.types import TensorTree

if TYPE_CHECKING:
    import torch

    from workers.stages.engine_args import OmniModelConfig

LoadDiffusionModel = Callable[["OmniModelConfig", "torch.device", str | None], "DiffusionModel"]
"""Takes (model, device, dtype of the engine settings) and returns the loaded model. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one prompt takes of a batch.

    units   counted in the model's own unit; the rows of a batch have at most ``max_batch_cost`` of them together
    length  how long the row takes; rows of one batch differ by a factor of two at most
    group   prompts of different groups never share a batch
    """

    units: int
    length: int
    group: Hashable


@dataclass(frozen=True, slots=True)
class RowOutput:
    """One row's output: named tensors, lists or dicts of tensors, and JSON values, for the stage's flow."""

    tensors: Mapping[str, TensorTree]
    values: Mapping[str, Any] = field(default_factory=dict)


class DiffusionModel(Protocol):
    """A loaded diffusion model."""

    max_batch_cost: int
    """The units of a batch that are best on its device, where the stage config does not say."""

    def check(self, prompt: DiffusionPrompt) -> Cost:
        """Return what the prompt takes. Raises ModelError naming the field that the model cannot take."""

    def begin(self, prompts: Sequence[DiffusionPrompt]) -> DiffusionBatch:
        """Return a batch of prompts that ``check`` accepted, all of one group; no step is taken yet."""


class DiffusionBatch(Protocol):
    """A batch under way. Its rows are numbered from 0, and renumbered by ``keep``."""

    @property
    def steps(self) -> int:
        """The number of steps in all."""

    @property
    def steps_done(self) -> int:
        """The number of steps taken."""

    @property
    def done(self) -> bool:
        """Whether all steps are taken."""

    def step(self) -> None:
        """Take one step for all rows."""

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, at least one, in this order, and free the memory of the others."""

    def finish(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield (row, its output) once the steps are done, in any order; rows that are not ``wanted`` may be left out.

        ``wanted`` may turn False for a row at any time.
        """
