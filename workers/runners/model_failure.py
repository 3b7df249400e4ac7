"""``model_failure``: the error of a stage run, of whatever a model's code raised beside the event loop.

``lacks_memory`` tells those apart that more memory would have prevented.
"""

import logging
import traceback

import torch

from omni_jobs.errors import EngineDead, ModelError, OutOfMemory, StageError
from workers.runners.contained import escaped

logger = logging.getLogger(__name__)

_LACK = (  # words of errors that say that memory lacks
    "can't allocate memory",  # torch's allocator on a CPU
    "bad_alloc",  # C++'s own
    "could not create a primitive",  # oneDNN
    # CUDA and its libraries, where others fill the card: beside torch they take memory for a kernel's code or a handle.
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "STATUS_NOT_INITIALIZED",
)


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


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error of torch, or of a library under it, lacks memory. The device itself is well then."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _LACK)
