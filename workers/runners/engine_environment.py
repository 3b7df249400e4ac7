"""The environment of an engine's process: no secrets of its worker, the loopback, and on a CPU larger limits of glibc.

The ranks of an engine are on one host. torch's gloo would listen on the address that the host's name has, where
others may connect to it, also for an engine of one rank.

A model on the CPU frees and allocates the same tens of megabytes in every layer. With glibc's own limits
each block goes back to the kernel, and each of its pages is faulted in and zeroed anew.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from omni_jobs.settings import SECRET_VARIABLES

_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # only larger blocks are mapped by themselves; mallopt(3) allows no more
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),  # free bytes that the main heap keeps at its end
    "MALLOC_TOP_PAD_": str(64 << 20),  # a thread's heap is that large, so it never shrinks
}
_ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
_OF_DATABASE = "PG"  # variables of PostgreSQL's client library, whose password it reads for each new connection


def engine_environment(device: str) -> dict[str, str]:
    """Return the environment for an engine's process: this process's own, with the loopback and, on a CPU, the limits.

    What is set already stays as it is. What only the worker uses is left out: the settings that hold secrets,
    and the variables of boto3 and of PostgreSQL's client library.
    """
    own = {name: value for name, value in os.environ.items() if not (_is_secret(name) or name.startswith(_OF_DATABASE))}
    return _settings(device) | own


@contextmanager
def lent_to_engines(device: str) -> Iterator[None]:
    """Give this process's environment the loopback and, on a CPU, the limits, and hide secrets in it until the end.

    For engines whose processes inherit it. What is given stays. PostgreSQL's variables are not hidden, because this
    process may connect meanwhile. Several engines may start at once: the secrets come back with the last one's end.
    """
    with _hiding:
        for name, value in _settings(device).items():
            os.environ.setdefault(name, value)
        _hidden.update({name: os.environ.pop(name) for name in list(os.environ) if _is_secret(name)})
        _starting.append(device)
    try:
        yield
    finally:
        with _hiding:
            _starting.remove(device)
            if not _starting:
                for name, value in _hidden.items():
                    os.environ.setdefault(name, value)
                _hidden.clear()


_hiding = threading.Lock()
_hidden: dict[str, str] = {}
_starting: list[str] = []


def _settings(device: str) -> dict[str, str]:
    return _ON_LOOPBACK | (_KEEP_FREED_MEMORY if device == "cpu" else {})


def _is_secret(name: str) -> bool:
    return name.upper() in SECRET_VARIABLES or name.startswith(("AWS_", "BOTO_", "OTEL_EXPORTER_OTLP_"))
