"""The environment of an engine's process: it makes glibc keep the memory that a model on the CPU frees.

A model frees and allocates the same tens of megabytes in every layer. With glibc's own limits
each block goes back to the kernel, and each of its pages is faulted in and zeroed anew.
"""

import os

_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # only larger blocks are mapped by themselves; mallopt(3) allows no more
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),  # the main heap keeps so many free bytes at its end
    "MALLOC_TOP_PAD_": str(64 << 20),  # a thread's heap is that large, so it never shrinks
}


def engine_environment(device: str) -> dict[str, str]:
    """Return the environment for an engine's process: this process's own, with larger limits of glibc on a CPU.

    A limit that is set already stays as it is.
    """
    return (_KEEP_FREED_MEMORY if device == "cpu" else {}) | dict(os.environ)
