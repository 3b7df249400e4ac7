"""vLLM's own OpenAI server on the CPU, with a tiny Llama: the real other side of remote stages.

It takes half a minute to start, so all tests of a session share one, and those that kill it start it again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes import descendants, until_gone
from tests.services import missing

MODEL = "tiny"
KEY = "sk-of-the-tests"
SEATS = 8  # requests that run at once
_START_S = 240.0


class VllmServer:
    """vLLM's server in a process group of its own; it keeps its port and its key when it starts again."""

    def __init__(self, model: Path, log: Path, *, seats: int = SEATS, options: Sequence[str] = ()) -> None:
        """``options``: further ones of its command line."""
        self._model = model
        self._log = log
        self._seats = seats
        self._options = options
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its base URL, as clients take it."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def started(self) -> bool:
        """Whether it was started, and not killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start it; it is not ready yet: ``wait``."""
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._model),
            "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(self.port), "--api-key", KEY,
            "--max-model-len", "1024", "--max-num-seqs", str(self._seats), "--enforce-eager", *self._options,
        ]  # fmt: skip
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process for the engine and its model: it starts faster
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it answers. Raises RuntimeError with the end of its log if it does not."""
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self._process is not None and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        self.kill()
        raise RuntimeError(self._log.read_text(errors="replace")[-3000:])

    def freeze(self) -> None:
        """Stop it and its engine where they are, until ``kill``."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """End it and its engine with SIGKILL, and wait until they are gone."""
        process, self._process = self._process, None
        if process is None:
            return
        all_of_them = [process.pid, *descendants(process.pid)]
        for pid in all_of_them:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        until_gone(all_of_them, 30)

    def connections(self) -> int:
        """Return the number of open connections to it as the kernel counts them, because it may be too busy to say."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        established = [there for _, _, there, state, *_ in rows if state == "01"]
        return sum(there.endswith(f":{self.port:04X}") for there in established)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels: ``vllm:num_requests_running``."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        if not values:
            raise KeyError(name)
        return sum(values)


@pytest.fixture(scope="session")
def vllm_server_process(tiny_causal_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """vLLM's server, started once."""
    try:
        import vllm.entrypoints.openai.api_server as _  # noqa: F401
    except ImportError:
        missing("vllm is not installed")
    server = VllmServer(tiny_causal_lm, tmp_path_factory.mktemp("vllm_server") / "log")
    try:
        server.start()
        server.wait()
        yield server
    finally:
        server.kill()


@pytest.fixture
def vllm_server(vllm_server_process: VllmServer) -> VllmServer:
    """vLLM's server, running, whatever the test before did to it."""
    if not vllm_server_process.started:
        vllm_server_process.start()
        vllm_server_process.wait()
    return vllm_server_process
