"""``model_failure``: the error of a stage run, of whatever a model's code raised beside the event loop."""

import logging
import traceback

import torch

from omni_jobs.errors import EngineDead, ModelError, OutOfMemory, StageError
from workers.runners.contained import escaped
from workers.runners.lack_of_memory import lacks_memory

logger = logging.getLogger(__name__)


def model_failure(error: BaseException) -> StageError:
    """Return a StageError as it is; ModelError, OutOfMemory, or EngineDead when the device failed, for another."""
    if isinstance(error, StageError):
        return error.with_traceback(None)
    if not isinstance(error, Exception):
        return escaped(error)
    if lacks_memory(error):
        return OutOfMemory(f"no memory for this step: {error}")
    if isinstance(error, torch.AcceleratorError):
        return EngineDead(f"the device failed: {error}")
    # As text, because a log record may be kept, and the traceback holds the step's tensors.
    logger.warning("the model failed:\n%s", "".join(traceback.format_exception(error)))
    return ModelError(f"the model failed: {error if isinstance(error, RuntimeError) else repr(error)}")
