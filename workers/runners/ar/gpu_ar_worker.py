"""``GPUARWorker``: vLLM's worker around ``GPUARModelRunner``, on CPU and GPU.

``ARRunner`` calls the ``omni_`` methods between two steps of the engine (``collective_rpc``). Tensors pass through the
spool. A request's error is returned (``ErrorJSON``), because an exception would fail all requests of the call.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from omni_jobs.errors import ModelError, OmniJobsError
from workers.runners.ar.captures import inputs_file
from workers.runners.ar.gpu_ar_model_runner import GPUARModelRunner
from workers.runners.ar.kept_prefixes import RowsChange
from workers.runners.model_failure import model_failure
from workers.runners.spool import SpoolFiles
from workers.vllm_hooks.worker import HookedWorker

ErrorJSON = dict[str, Any] | None
"""``OmniJobsError.to_dict`` of one request's error; None when there was none."""


class GPUARWorker(HookedWorker):
    """vLLM's worker of one rank of an AR engine. Each rank loads additional information; one captures hidden states."""

    runner_class: ClassVar[type[GPUARModelRunner]] = GPUARModelRunner
    model_runner: GPUARModelRunner

    def omni_start(self, spool: str, min_free_bytes: int, adds_embeddings: bool) -> dict[str, int]:
        """Use the spool in that directory, of whose filesystem ``min_free_bytes`` stay free.

        ``adds_embeddings``: whether a captured row includes the input embedding (``GPUARModelRunner``).
        Return bytes: ``row_bytes`` of one row that this rank captures, ``buffer_bytes`` of the buffers through which it
        is copied. ``names_outputs``: 1 if the model makes outputs of its own of all rows (``SupportsNamedOutputs``).
        """
        self._spool = SpoolFiles(Path(spool), min_free_bytes)
        self.model_runner.adds_embeddings = adds_embeddings
        return {
            "row_bytes": self.model_runner.row_bytes(),
            "buffer_bytes": self.model_runner.buffer_bytes(),
            "names_outputs": int(self.model_runner.names_outputs()),
        }

    def omni_load(self, calls: Sequence[tuple[str, int]]) -> list[ErrorJSON]:
        """Load additional information for coming requests; return the error of each, or None.

        ``calls``: each request's key, which names its spool file too, and the number of its prompt's tokens.
        """
        return [_error_of(partial(self._load, *call)) for call in calls]

    def _load(self, key: str, prompt_tokens: int) -> None:
        tensors, values = self._spool.read(key)
        self.model_runner.load_information(key, {**values, **tensors}, prompt_tokens)

    def omni_take(self, calls: Sequence[tuple[str, int, Sequence[Any] | None]]) -> list[ErrorJSON]:
        """Write captured rows, the model's named outputs and the M-RoPE positions to the spool, and forget the capture.

        ``calls``: each request's key, which names its spool file too, the number of its rows, and the fields of the
        ``RowsChange`` by which they are filled from earlier requests and kept for later ones. Return the error of
        each request, or None. A rank that does not capture writes nothing; the first rank of a pipeline writes its rows
        to a file of their own (``inputs_file``).
        """
        if not self.model_runner.holds_rows():
            return [None] * len(calls)
        return [_error_of(partial(self._take, *call)) for call in calls]

    def _take(self, key: str, rows: int, change: Sequence[Any] | None) -> None:
        capture = self.model_runner.take(key)
        if capture is None:
            raise ModelError("the engine holds no hidden states of this request", field="hidden_states")
        if change is not None:
            self.model_runner.reuse_rows(capture, RowsChange(*change))
        if missing := capture.missing(rows):
            raise ModelError(
                f"{len(missing)} of {rows} hidden states were never computed, the first at {missing[0]}",
                field="hidden_states",
            )
        outputs, values = self.model_runner.outputs_of(capture, rows), {}
        if not self.model_runner.holds_output():
            self._spool.write(inputs_file(key), outputs, {})
            return
        if capture.positions is not None:
            outputs["mrope_positions"], values["mrope_delta"] = capture.positions, capture.delta
        self._spool.write(key, outputs, values)

    def omni_drop(self, key: str) -> None:
        """Forget the capture and the information of a request that was cancelled or has failed."""
        self.model_runner.drop(key)
        self.model_runner.drop_information(key)

    def omni_stats(self) -> dict[str, int]:
        """Return the model runner's counts (``stats``) and this process's id as ``pid``."""
        return {**self.model_runner.stats(), "pid": os.getpid()}


def _error_of(action: Callable[[], None]) -> ErrorJSON:
    try:
        with torch.inference_mode():
            action()
    except OmniJobsError as error:
        return error.to_dict()
    except BaseException as error:  # noqa: BLE001 it would fail the other requests of the call, or end the engine
        return model_failure(error).to_dict()
    return None
