"""``MortalServer``: an API server in a process of its own, which ends when a test wants, and is started again."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.echo_stack import EchoStack


class MortalServer:
    """One process after the other serves the same listening socket, where connections wait for the next one."""

    def __init__(self, stack: EchoStack, listening: socket.socket, log: Path) -> None:
        self.environment = {**os.environ, **stack.variables}
        self.listening = listening
        self.log = log
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.process = self._started()

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        self.process.wait()

    def start_again(self) -> None:
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        number = self.listening.fileno()
        command = [sys.executable, "-m", "omni_jobs.cli", "api", "--fd", str(number)]
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, pass_fds=[number]
            )


@contextmanager
def mortal_server(stack: EchoStack, log: Path) -> Iterator[MortalServer]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        server = MortalServer(stack, listening, log)
        try:
            yield server
        finally:
            server.end()
