"""``GuidedDenoiser``: what models that denoise pictures or videos share: a condition, and one to be led away from.

A family's own model makes rows of prompts, and says where a row goes under a condition and how guidance combines two of
these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from workers.models.pictures.colours import Colours, fit_colours
from workers.models.pictures.vae import PictureVae
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.ranks import Ranks, RowElsewhere
from workers.runners.diffusion.step_budget import MemoryLimit
from workers.runners.model_failure import lacks_memory


@dataclass(slots=True, kw_only=True)
class GuidedRow:
    """One picture or video under way, its tensors on the model's device.

    seed           of its noise
    latents        float32 in whatever dtype the transformer runs
    condition      of the prompt, as the family has it
    unconditional  what guidance leads away from; None: there is no guidance
    lora           the name of its LoRA adapter; None: the model as it is
    prompt         what it was made of; a row on two devices must have it
    elsewhere      the row on the second device; None: there is none yet
    """

    seed: int
    latents: torch.Tensor
    condition: Any
    unconditional: Any | None
    lora: str | None = None
    prompt: DiffusionPrompt[Any] | None = None
    elsewhere: RowElsewhere | None = None


_Guided = TypeVar("_Guided", bound=GuidedRow)


class Pass(NamedTuple, Generic[_Guided]):
    """A row's way through the transformer in one step, under its condition or its unconditional one."""

    row: _Guided
    condition: Any


class GuidedDenoiser(ABC, Generic[_Guided]):
    """The transformer's part of a step of some rows, with guidance for those that have some."""

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
        self._ranks: Ranks | None = None

    @abstractmethod
    def forward(self, passes: Sequence[Pass[_Guided]]) -> Sequence[torch.Tensor]:
        """Return where each pass goes, a tensor of the shape of its row's latents. There is one pass at least."""

    @abstractmethod
    def tokens(self, each: Pass[_Guided]) -> int:
        """Return what a pass takes of a forward, in the unit of ``max_batch_cost``."""

    @abstractmethod
    def guided(self, row: _Guided, plain: torch.Tensor, unguided: torch.Tensor) -> torch.Tensor:
        """Return where a row goes, of where its condition and its unconditional one lead."""

    def velocities(self, rows: Sequence[_Guided]) -> Sequence[torch.Tensor]:
        """Return where each row goes, float32 of the shape of its latents."""
        plain = [Pass(row, row.condition) for row in rows]
        negative = [Pass(row, row.unconditional) for row in rows if row.unconditional is not None]
        found = self._both(plain, negative) if negative else self.forward(plain)
        unguided = iter(found[len(rows) :])
        return [
            (each if row.unconditional is None else self.guided(row, each, next(unguided))).float()
            for row, each in zip(rows, found, strict=False)
        ]

    def divide(self, ranks: Ranks) -> None:
        """Let the unconditional pass of guided rows run on the second device from now on."""
        self._ranks = ranks

    def unconditional(self, rows: Sequence[_Guided], latents: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return where the unconditional pass of each row goes from these latents."""
        for row, each in zip(rows, latents, strict=True):
            row.latents = each
        return self.forward([Pass(row, row.unconditional) for row in rows])

    def colours(self) -> Colours:
        """Return the colours of latents, for previews. Raises ConfigError when the checkpoint has no VAE here."""
        if self._colours is None:
            self._colours = fit_colours(self._load_vae())  # which lets go of the VAE
        return self._colours

    def _both(self, plain: Sequence[Pass[_Guided]], negative: Sequence[Pass[_Guided]]) -> Sequence[torch.Tensor]:
        """Return both halves of guidance: on two devices, in one forward, or one after the other."""
        if self._ranks is None:
            joint = self._jointly([*plain, *negative])
            return [*self.forward(plain), *self.forward(negative)] if joint is None else joint
        rows = [each.row for each in negative]
        self._ranks.begin(rows)
        try:
            found = self.forward(plain)
        except BaseException:
            self._ranks.discard(rows)
            raise
        return [*found, *self._ranks.predictions(rows).to(found[0].dtype)]

    def _jointly(self, passes: Sequence[Pass[_Guided]]) -> Sequence[torch.Tensor] | None:
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
