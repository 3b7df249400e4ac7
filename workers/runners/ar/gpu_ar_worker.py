"""``GPUARWorker``: vLLM's worker around ``GPUARModelRunner``, on CPU and GPU.

The engine's client calls the methods here between steps (``collective_rpc``); tensors
pass through the spool. Answers are small JSON values; errors are answers too, so that
a request's error never ends the engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from omni_jobs.errors import OmniJobsError, StageError
from workers.runners.ar.gpu_ar_model_runner import GPUARModelRunner
from workers.runners.spool import SpoolReader
from workers.vllm_hooks.worker import HookedWorker

__all__ = ["GPUARWorker"]

Answer = dict[str, str] | None
"""What went wrong with one request; None: nothing."""


class GPUARWorker(HookedWorker):
    """Every rank loads information; one rank captures and writes."""

    runner_class: ClassVar[type[GPUARModelRunner]] = GPUARModelRunner
    model_runner: GPUARModelRunner

    def omni_start(self, spool: str, min_free_bytes: int, adds_embeddings: bool) -> dict[str, int]:
        """The engine's client tells where the spool is, what must stay free there, and what a captured row is.

        It is told what captures take: bytes per row, and bytes of buffers.
        """
        self._spool = SpoolReader(Path(spool), min_free_bytes)
        self.model_runner.adds_embeddings = adds_embeddings
        return {"row_bytes": self.model_runner.row_bytes(), "buffer_bytes": self.model_runner.buffer_bytes()}

    def omni_load(self, calls: Sequence[tuple[str, int]]) -> list[Answer]:
        """Per (key, prompt tokens): load the information in spool file ``key`` for a coming request."""
        return [_answer(partial(self._load, *call)) for call in calls]

    def _load(self, key: str, prompt_tokens: int) -> None:
        self.model_runner.load_information(key, self._spool.read(key), prompt_tokens)

    def omni_take(self, calls: Sequence[tuple[str, int]]) -> list[Answer]:
        """Per (key, rows): write the first ``rows`` captured rows, the model's named outputs and the positions
        to spool file ``key``. Other ranks than the one that captures have nothing to do.
        """
        if not self.model_runner.holds_output():
            return [None] * len(calls)
        return [_answer(partial(self._take, *call)) for call in calls]

    def _take(self, key: str, rows: int) -> None:
        capture = self.model_runner.take(key)
        if capture is None:
            raise StageError("the engine holds no hidden states of this request", field="hidden_states")
        if missing := capture.missing(rows):
            raise StageError(
                f"{len(missing)} of {rows} hidden states were never computed, the first at {missing[0]}",
                field="hidden_states",
            )
        found: dict[str, Any] = dict(self.model_runner.outputs_of(capture, rows))
        if capture.positions is not None:
            found |= {"mrope_positions": capture.positions, "mrope_delta": capture.delta}
        self._spool.write(key, found)

    def omni_drop(self, key: str) -> None:
        """Forget what is held under ``key``: the request was cancelled or has failed."""
        self.model_runner.drop(key)
        self.model_runner.drop_information(key)

    def omni_stats(self) -> dict[str, int]:
        return {**self.model_runner.stats(), "pid": os.getpid()}


def _answer(action: Callable[[], None]) -> Answer:
    try:
        with torch.inference_mode():
            action()
    except OmniJobsError as error:
        return {"message": error.message, "field": error.field or "", "retry_class": error.retry_class or ""}
    return None
