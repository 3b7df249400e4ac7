"""``lacks_memory``: whether an error of torch, or of a library under it, says that memory lacks."""

import torch

_WORDS = (
    "can't allocate memory",  # torch's allocator on a CPU
    "bad_alloc",  # C++'s own
    "could not create a primitive",  # oneDNN
    # CUDA and its libraries, where others fill the card: beside torch they take memory for a kernel's code or a handle.
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "STATUS_NOT_INITIALIZED",
)


def lacks_memory(error: BaseException) -> bool:
    """Return whether the step may succeed with more memory. The device itself is well then."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
