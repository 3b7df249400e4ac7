"""Protocols that a diffusion model implements, so that the diffusion engine runs it without knowing what it makes.

    load(model, device, dtype) → DiffusionModel     a family's declaration names this function as text
    check(prompt) → Cost                            called for each prompt before it waits
    begin(prompt) → DiffusionRow                    one prompt under way
    step(rows)                                      one step of each of some rows; called until they are done
    finish(rows, wanted) → outputs                  of rows whose steps are all taken

The engine chooses the rows of every step anew: a row may come, rest and leave between any two steps, and its company
changes. So all that a step needs of a row belongs to the row: its own number of steps, times, guidance and scheduler
state. The engine calls ``check`` on its event loop, everything else on one thread, in ``torch.inference_mode``.
Examples: workers.models.qwen2_5_omni.code2wav, and examples/pastel, which docs/models.md explains.

More protocols are optional: ``ResumableModel``, ``PreviewingModel``, ``AdaptableModel``, ``DividedModel``,
``OffloadedModel``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from omni_jobs.errors import ModelError
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.types import TensorTree

if TYPE_CHECKING:
    import torch

    from workers.runners.diffusion.ranks import Ranks
    from workers.stages.engine_args import OmniModelConfig

LoadDiffusionModel = Callable[["OmniModelConfig", "torch.device", str | None], "DiffusionModel"]
"""Takes (model, device, dtype of the engine settings) and returns the loaded model. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one prompt takes of the engine.

    units  of one step, counted in the model's own unit; the rows of a step have at most ``max_batch_cost`` together
    steps  how many steps the row takes in all, at least one
    group  rows of different groups never share a step
    """

    units: int
    steps: int
    group: Hashable

    def __post_init__(self) -> None:
        """Raise ModelError for what no step could be made of."""
        if type(self.units) is not int or type(self.steps) is not int or self.units < 1 or self.steps < 1:
            raise ModelError(f"a row of {self.units} units and {self.steps} steps", field="cost")


@dataclass(frozen=True, slots=True)
class RowOutput:
    """One row's output, or what ``save`` keeps of a row: named tensors, lists or dicts of tensors, and JSON values."""

    tensors: Mapping[str, TensorTree]
    values: Mapping[str, Any] = field(default_factory=dict)


class DiffusionRow(Protocol):
    """One prompt under way, as the model keeps it between steps. The engine lets go of a row to drop it."""

    @property
    def steps_done(self) -> int:
        """The number of steps taken: 0 … ``steps`` of its cost."""


class DiffusionModel(Protocol):
    """A loaded diffusion model."""

    max_batch_cost: int
    """The units of a step that are best on its device, where the stage config does not say: with fewer a step would
    hardly end earlier, with more it would only take longer."""

    def check(self, prompt: DiffusionPrompt[Any]) -> Cost:
        """Return what the prompt takes. Raises ModelError naming the field that the model cannot take."""

    def begin(self, prompt: DiffusionPrompt[Any]) -> DiffusionRow:
        """Return the row of a prompt that ``check`` accepted; no step is taken yet. Its noise comes of the seed."""

    def step(self, rows: Sequence[Any]) -> None:
        """Take one step of each row. All are of one group and none is done; each may be at another step.

        If it raises, no row has advanced, so that the engine may take the same step of fewer rows.
        """

    def finish(self, rows: Sequence[Any], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield (number of the row in ``rows``, its output) of rows that are done, all of one group, in any order.

        Rows that are not ``wanted`` may be left out; ``wanted`` may turn False for a row at any time.
        """


@runtime_checkable
class ResumableModel(DiffusionModel, Protocol):
    """A model whose rows can be saved between two steps and resumed in another process, to the same result."""

    def save(self, row: Any) -> RowOutput:
        """Return what ``resume`` needs beside the prompt: latents and scheduler state, steps_done, what made them.

        The tensors are on the CPU and do not change when the row goes on. Conditions are not among them, because they
        come of the prompt.
        """

    def resume(self, prompt: DiffusionPrompt[Any], tensors: Mapping[str, TensorTree], values: Mapping[str, Any]) -> Any:
        """Return the row that ``save`` saw, for an equal prompt that ``check`` accepted.

        Raises ModelError naming the tensor or value that is missing, of another shape or dtype, not finite, or of
        another model, version, number of steps, size or seed.
        """


@runtime_checkable
class PreviewingModel(DiffusionModel, Protocol):
    """A model that can show cheaply what comes of a row."""

    def preview(self, row: Any) -> torch.Tensor:
        """Return a small picture of the row between two steps, uint8 [h, w, 3], on any device.

        The engine thins one with a side of over 128 pixels. Raises ConfigError where the checkpoint lacks what previews
        need: then it is not called again in this process. After any other error this preview is left out, and the row
        goes on.
        """


@runtime_checkable
class AdaptableModel(DiffusionModel, Protocol):
    """A model whose rows may each have a LoRA adapter, in one step with rows that have another or none.

    Its component is declared to take ``lora_modules``, and its parameters are ``LoraParameters``.
    """

    def adapt(self, directories: Mapping[str, str]) -> None:
        """Load the adapters in these directories, by name; called once, before any row.

        Raises ConfigError naming the module and the file.
        """


@runtime_checkable
class DividedModel(DiffusionModel, Protocol):
    """A model of whose steps the unconditional pass can run on a second device.

    Its component is declared to take ``devices``, and its rows are each a ``DividedRow``.
    """

    def divide(self, ranks: Ranks) -> None:
        """Let ``ranks`` run the unconditional passes from now on; called once, before any row."""

    def unconditional(self, rows: Sequence[Any], latents: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return where the unconditional pass of each row goes, on the second device. The rows have these latents."""


@runtime_checkable
class OffloadedModel(DiffusionModel, Protocol):
    """A model whose blocks can stay in host memory.

    Its component is declared to take ``offload_blocks``, and it is loaded into host memory where the config says so.
    """

    def offload(self, device: torch.device) -> None:
        """Let blocks come to the device when they compute; called once, behind ``adapt`` and before any row."""
