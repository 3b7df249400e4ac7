"""``RewindableGenerator``: makes vLLM's seeded sampling work on the CPU.

vLLM 0.32 samples for every request of a step. It discards the token of a prompt that is computed only in part,
and sets back that request's generator by an offset (``_bookkeeping_sync``). CPU generators have no offset, so
the engine would die. ``RewindableGenerator`` saves its state before such a draw and restores it afterwards. So a
seed gives the same tokens however the prompt is split into chunks.
"""

from __future__ import annotations

import torch


class RewindableGenerator(torch.Generator):
    """A CPU generator whose last draw can be taken back through vLLM's offset methods."""

    _saved_state: torch.Tensor

    @classmethod
    def seeded(cls, seed: int) -> RewindableGenerator:
        """Return a new generator with this seed."""
        generator = cls(device="cpu")
        generator.manual_seed(seed)
        return generator

    def save(self) -> None:
        """Save the state before a draw that vLLM will take back with ``set_offset``."""
        self._saved_state = self.get_state()

    def get_offset(self) -> int:
        """Return 0; vLLM subtracts from it and passes the result to ``set_offset``."""
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Restore the saved state, whatever the offset, and return this generator."""
        del offset
        return self.set_state(self._saved_state)
