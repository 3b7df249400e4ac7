"""``Previews``: pictures of what rows will become, for the jobs that asked for them. For others nothing is computed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from omni_jobs.errors import ConfigError, ModelError
from workers.runners.diffusion.model import DiffusionRow, PreviewingModel
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.lack_of_memory import lacks_memory

logger = logging.getLogger(__name__)

LONGEST_SIDE = 128
"""Pixels; a larger preview is thinned, because it goes through the database with the job's progress."""


class _Viewer(Protocol):
    @property
    def prompt(self) -> DiffusionPrompt[Any]: ...

    def show(self, picture: torch.Tensor) -> None: ...


class _ShownRow(Protocol):
    @property
    def caller(self) -> _Viewer: ...

    @property
    def under_way(self) -> DiffusionRow | None: ...

    @property
    def steps_left(self) -> int: ...


class Previews:
    """Shows rows to their callers after every few of their steps."""

    def __init__(self, model: PreviewingModel, every_steps: int) -> None:
        """Show a row whenever the number of its steps is a multiple of ``every_steps``, but not after the last."""
        self._model = model
        self._every_steps = every_steps
        self._can_show = True

    def show(self, rows: Iterable[_ShownRow]) -> None:
        """Show those of the rows whose turn it is; they have just taken a step.

        A preview that fails is left out. After a ConfigError none are tried any more, because each try may load a part
        of the checkpoint, for which all rows would wait.
        """
        for row in rows:
            done = 0 if row.under_way is None else row.under_way.steps_done
            wants_one = row.caller.prompt.previews and row.steps_left and done and done % self._every_steps == 0
            if wants_one and self._can_show:
                self._show(row)

    def _show(self, row: _ShownRow) -> None:
        try:
            row.caller.show(_small(self._model.preview(row.under_way)))
        except ConfigError as error:
            self._can_show = False
            logger.error("no previews until the engine starts again: %s", error)
        except BaseException as error:
            if isinstance(error, torch.AcceleratorError) and not lacks_memory(error):
                raise  # of an earlier step; nothing can run on this device any more
            # Any other error is the model's code's; the row itself goes on.
            logger.warning("no preview: %r", error)


def _small(picture: torch.Tensor) -> torch.Tensor:
    """Return the picture on the CPU, thinned to the longest side. Raises ModelError for what is no picture."""
    if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.numel():
        raise ModelError(f"uint8 [h, w, 3] is due, not {picture.dtype} {list(picture.shape)}", field="preview")
    stride = -(-max(picture.shape[:2]) // LONGEST_SIDE)
    return picture[::stride, ::stride].to("cpu", copy=True).contiguous()
