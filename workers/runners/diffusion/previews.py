"""``Previews``: pictures of what rows will become, for the jobs that asked for them. For others nothing is computed."""

from __future__ import annotations

import logging

import torch

from omni_jobs.errors import ConfigError, ModelError
from workers.runners.diffusion.model import DiffusionModel, DiffusionRow, PreviewingModel
from workers.runners.model_failure import lacks_memory

logger = logging.getLogger(__name__)

LONGEST_SIDE = 128
"""Pixels; a larger preview is thinned, because it goes through the database with the job's progress."""


class Previews:
    """Makes a preview of a row after every few of its steps."""

    def __init__(self, model: DiffusionModel, every_steps: int) -> None:
        """Show a row whenever the number of its steps is a multiple of ``every_steps``, if the model can show rows."""
        self._model = model if isinstance(model, PreviewingModel) else None
        self._every_steps = every_steps

    def of(self, row: DiffusionRow) -> torch.Tensor | None:
        """Return a picture of a row that has just taken a step, uint8 [h, w, 3] on the CPU; None if it is not its turn.

        A preview that fails is left out. After a ConfigError none are tried any more, because each try may load a part
        of the checkpoint, for which all rows would wait.
        """
        if self._model is None or not row.steps_done or row.steps_done % self._every_steps:
            return None
        try:
            return _small(self._model.preview(row))
        except ConfigError as error:
            self._model = None
            logger.error("no previews until the engine starts again: %s", error)
        except BaseException as error:
            if isinstance(error, torch.AcceleratorError) and not lacks_memory(error):
                raise  # of an earlier step; nothing can run on this device any more
            # Any other error is the model's code's; the row itself goes on.
            logger.warning("no preview: %r", error)
        return None


def _small(picture: torch.Tensor) -> torch.Tensor:
    """Return the picture on the CPU, thinned to the longest side. Raises ModelError for what is no picture."""
    if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.numel():
        raise ModelError(f"uint8 [h, w, 3] is due, not {picture.dtype} {list(picture.shape)}", field="preview")
    stride = -(-max(picture.shape[:2]) // LONGEST_SIDE)
    return picture[::stride, ::stride].to("cpu", copy=True).contiguous()
