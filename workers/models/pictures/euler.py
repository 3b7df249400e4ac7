"""``EulerDenoiser``: what models that denoise pictures share: from the seed's noise to latents by Euler's method.

A family's own model makes rows of prompts, and says where a row goes under a condition and how guidance combines two of
these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from workers.models.pictures.colours import Colours, fit_colours
from workers.models.pictures.schedule import Schedule
from workers.models.pictures.vae import PictureVae
from workers.runners.diffusion.model import RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.saved_row import SavedRow
from workers.runners.diffusion.step_budget import MemoryLimit
from workers.runners.model_failure import lacks_memory
from workers.stages.types import TensorTree


@dataclass(slots=True, kw_only=True)
class EulerRow:
    """One picture under way, its tensors on the model's device.

    schedule       its own steps
    seed           of its noise
    latents        in the transformer's form, float32 in whatever dtype that runs: in bfloat16 a step's length is wrong
                   by up to 0.4 %
    condition      of the prompt, as the family has it
    unconditional  what guidance leads away from; None: there is no guidance
    velocity       where the last step went, float32 of the latents' shape; None before the first one here
    """

    schedule: Schedule
    seed: int
    latents: torch.Tensor
    condition: Any
    unconditional: Any | None
    steps_done: int = 0
    velocity: torch.Tensor | None = None


_Row = TypeVar("_Row", bound=EulerRow)


class Pass(NamedTuple, Generic[_Row]):
    """A row's way through the transformer in one step, under its condition or its unconditional one."""

    row: _Row
    condition: Any


class EulerDenoiser(ABC, Generic[_Row]):
    """A ``ResumableModel`` and ``PreviewingModel``. Its output keeps the flow ``latents``."""

    def __init__(
        self, device: torch.device, max_batch_cost: Mapping[str, int], load_vae: Callable[[], PictureVae]
    ) -> None:
        """Take the best cost of a step by the type of device, and what loads the checkpoint's VAE: for previews."""
        self.device = device
        self.max_batch_cost = max_batch_cost[device.type]
        # Tokens up to which a step computes both halves of guidance in one forward. On a CPU that is no faster, and
        # one after the other gives the reference's bits.
        self.joint = MemoryLimit(self.max_batch_cost if device.type == "cuda" else 0)
        self._load_vae = load_vae
        self._colours: Colours | None = None

    @abstractmethod
    def begin(self, prompt: DiffusionPrompt[Any]) -> _Row:
        """Return the row of a prompt: noise of its seed."""

    @abstractmethod
    def forward(self, passes: Sequence[Pass[_Row]]) -> Sequence[torch.Tensor]:
        """Return where each pass goes, a tensor of the shape of its row's latents. There is one pass at least."""

    @abstractmethod
    def tokens(self, each: Pass[_Row]) -> int:
        """Return what a pass takes of a forward, in the unit of ``max_batch_cost``."""

    @abstractmethod
    def guided(self, row: _Row, plain: torch.Tensor, unguided: torch.Tensor) -> torch.Tensor:
        """Return where a row goes, of where its condition and its unconditional one lead."""

    @abstractmethod
    def unpacked(self, row: _Row, latents: torch.Tensor) -> torch.Tensor:
        """Return latents in the transformer's form as [C, H / 8, W / 8]."""

    @abstractmethod
    def origin(self, row: _Row) -> Mapping[str, Any]:
        """Return the values that a snapshot and the job that goes on from it must have in common."""

    def step(self, rows: Sequence[_Row]) -> None:
        """Take one step of Euler's method for each row."""
        velocities = self._velocities(rows)
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
        return RowOutput({"latents": latents}, {"steps_done": row.steps_done, **self.origin(row)})

    def resume(
        self, prompt: DiffusionPrompt[Any], tensors: Mapping[str, TensorTree], values: Mapping[str, Any]
    ) -> _Row:
        """Return the row that ``save`` saw. Raises ModelError naming what is missing, wrong, or of another job."""
        row, saved = self.begin(prompt), SavedRow(tensors, values)
        saved.check(**self.origin(row))
        row.steps_done = saved.steps_done(row.schedule.steps)
        row.latents = saved.tensor("latents", tuple(row.latents.shape), torch.float32).to(self.device, copy=True)
        return row

    def preview(self, row: _Row) -> torch.Tensor:
        """Return the picture that the row would become in one long step, roughly: uint8 [H / 8, W / 8, 3].

        Raises ConfigError when the checkpoint has no VAE here.
        """
        if self._colours is None:
            self._colours = fit_colours(self._load_vae())  # which lets go of the VAE
        latents = row.latents
        if row.velocity is not None:
            latents = latents - row.schedule.sigmas[row.steps_done].item() * row.velocity
        return self._colours.picture(self.unpacked(row, latents))

    def _velocities(self, rows: Sequence[_Row]) -> Sequence[torch.Tensor]:
        plain = [Pass(row, row.condition) for row in rows]
        negative = [Pass(row, row.unconditional) for row in rows if row.unconditional is not None]
        found = self._jointly([*plain, *negative]) if negative else self.forward(plain)
        if found is None:
            found = [*self.forward(plain), *self.forward(negative)]
        unguided = iter(found[len(rows) :])
        return [
            (each if row.unconditional is None else self.guided(row, each, next(unguided))).float()
            for row, each in zip(rows, found, strict=False)
        ]

    def _jointly(self, passes: Sequence[Pass[_Row]]) -> Sequence[torch.Tensor] | None:
        """Return one forward of both halves of guidance; None where memory does not let them be together."""
        tokens = sum(map(self.tokens, passes))
        if tokens > self.joint.units:
            return None
        try:
            return self.forward(passes)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            self.joint.shrink(tokens)  # so that it is tried again only after some steps
            return None


def _moved(row: EulerRow, velocity: torch.Tensor) -> torch.Tensor:
    sigmas = row.schedule.sigmas
    return row.latents + (sigmas[row.steps_done + 1] - sigmas[row.steps_done]) * velocity
