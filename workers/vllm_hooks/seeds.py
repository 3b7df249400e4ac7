"""Per-request seeds on the CPU.

vLLM 0.32 samples for every request in a step and throws away what a prompt computed in
part has sampled; it then winds that request's generator back by an offset. CPU
generators have none, and the engine dies of it (``_bookkeeping_sync``). This one keeps
its state before such a draw and goes back to it, so that a job's seed gives the same
tokens however its prompt was cut.
"""

from __future__ import annotations

import torch

__all__ = ["RewindableGenerator"]


class RewindableGenerator(torch.Generator):
    """A CPU generator with as much of an offset as vLLM asks for."""

    _kept: torch.Tensor

    @classmethod
    def seeded(cls, seed: int) -> RewindableGenerator:
        generator = cls(device="cpu")
        generator.manual_seed(seed)
        return generator

    def keep(self) -> None:
        """The next draw will be taken back."""
        self._kept = self.get_state()

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Back to what ``keep`` kept; by how far does not matter."""
        del offset
        return self.set_state(self._kept)
