"""``EulerDenoiser``: what models that denoise pictures share: from the seed's noise to latents by Euler's method."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from workers.models.pictures.guidance import GuidedDenoiser, GuidedRow
from workers.models.pictures.schedule import Schedule
from workers.models.pictures.vae import PictureVae
from workers.runners.diffusion.lora_adapters import LoraAdapters
from workers.runners.diffusion.model import RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.saved_row import SavedRow
from workers.stages.types import TensorTree


@dataclass(slots=True, kw_only=True)
class EulerRow(GuidedRow):
    """One picture under way, its latents in the transformer's form. In bfloat16 a step's length is wrong by 0.4 %.

    schedule  its own steps
    velocity  where the last step went, float32 of the latents' shape; None before the first one here
    """

    schedule: Schedule
    steps_done: int = 0
    velocity: torch.Tensor | None = None


_Row = TypeVar("_Row", bound=EulerRow)


class EulerDenoiser(GuidedDenoiser[_Row]):
    """A ``ResumableModel`` and ``PreviewingModel``. Its output keeps the flow ``latents``."""

    def __init__(
        self, device: torch.device, max_batch_cost: Mapping[str, int], load_vae: Callable[[], PictureVae]
    ) -> None:
        """Take what a ``GuidedDenoiser`` does. There are no LoRA adapters yet."""
        super().__init__(device, max_batch_cost, load_vae)
        self.adapters = LoraAdapters()

    @abstractmethod
    def begin(self, prompt: DiffusionPrompt[Any]) -> _Row:
        """Return the row of a prompt: noise of its seed."""

    @abstractmethod
    def unpacked(self, row: _Row, latents: torch.Tensor) -> torch.Tensor:
        """Return latents in the transformer's form as [C, H / 8, W / 8]."""

    @abstractmethod
    def origin(self, row: _Row) -> Mapping[str, Any]:
        """Return the values that a snapshot and the job that goes on from it must have in common."""

    def step(self, rows: Sequence[_Row]) -> None:
        """Take one step of Euler's method for each row."""
        velocities = self.velocities(rows)
        moved = [_moved(row, velocity) for row, velocity in zip(rows, velocities, strict=True)]
        for row, latents, velocity in zip(rows, moved, velocities, strict=True):
            row.latents, row.velocity = latents, velocity
            row.steps_done += 1
        self.joint.count_step()

    def finish(self, rows: Sequence[_Row], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``latents`` float32 [C, H / 8, W / 8]."""
        for number, row in enumerate(rows):
            if wanted(number):
                yield number, RowOutput({"latents": self.unpacked(row, row.latents)})

    def save(self, row: _Row) -> RowOutput:
        """Return the row's latents as they are between two steps, and what they were made with."""
        latents = row.latents.to("cpu", copy=True)
        return RowOutput({"latents": latents}, {"steps_done": row.steps_done, **self._whole_origin(row)})

    def resume(
        self, prompt: DiffusionPrompt[Any], tensors: Mapping[str, TensorTree], values: Mapping[str, Any]
    ) -> _Row:
        """Return the row that ``save`` saw. Raises ModelError naming what is missing, wrong, or of another job."""
        row, saved = self.begin(prompt), SavedRow(tensors, values)
        saved.check(**self._whole_origin(row))
        row.steps_done = saved.steps_done(row.schedule.steps)
        row.latents = saved.tensor("latents", tuple(row.latents.shape), torch.float32).to(self.device, copy=True)
        return row

    def _whole_origin(self, row: _Row) -> Mapping[str, Any]:
        return {"lora": self.adapters.identity(row.lora), **self.origin(row)}

    def preview(self, row: _Row) -> torch.Tensor:
        """Return the picture that the row would become in one long step, roughly: uint8 [H / 8, W / 8, 3].

        Raises ConfigError when the checkpoint has no VAE here.
        """
        latents = row.latents
        if row.velocity is not None:
            latents = latents - row.schedule.sigmas[row.steps_done].item() * row.velocity
        return self.colours().picture(self.unpacked(row, latents))


def _moved(row: EulerRow, velocity: torch.Tensor) -> torch.Tensor:
    sigmas = row.schedule.sigmas
    return row.latents + (sigmas[row.steps_done + 1] - sigmas[row.steps_done]) * velocity
