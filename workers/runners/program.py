"""``run_program``: runs a program for one prompt, for runners whose work another program does."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from omni_jobs.errors import ConfigError, ModelError
from workers import parent_death
from workers.runners.cancellation import settled
from workers.runners.engine_environment import engine_environment

_SHOWN_CHARACTERS = 500  # the end of what it wrote about an error
_MOST_BYTES_OF_ERRORS = 4 * _SHOWN_CHARACTERS
_LAST_WORDS_S = 5.0  # for what it wrote before its end to be read; a process that left its group may hold the pipe
_STDOUT = 1


async def run_program(command: Sequence[str], data: bytes = b"", *, most_bytes: int = 1 << 28) -> bytes:
    """Give a program ``data`` as its standard input, and return its standard output.

    It gets this process's environment without the secrets. Its end, and cancelling, kill what it has started in its
    process group; the kernel kills it with this process. Raises ConfigError for a program that cannot be started, and
    ModelError for one that ends otherwise than with 0, with the end of its standard error, or writes more than
    ``most_bytes``.
    """
    # Of asyncio's own ``Process``, ``wait`` waits for the pipes as well, which may be held, or not be read any more.
    transport, words = await asyncio.get_running_loop().subprocess_exec(
        lambda: _Words(most_bytes),
        *(sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *command),
        env=engine_environment("auto"),
        start_new_session=True,
    )
    try:
        stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        if not stdin.is_closing():  # a quick program has ended already, as uvloop notes
            stdin.write(data)
            stdin.close()
        await asyncio.wait({words.ended, words.flooded}, return_when=asyncio.FIRST_COMPLETED)
        _kill_group(transport.get_pid())
        await asyncio.wait({words.ended, words.silent}, timeout=_LAST_WORDS_S)
    finally:
        _kill_group(transport.get_pid())
        await settled(words.ended)
        transport.close()
    if words.flooded.done():
        raise ModelError(f"the program wrote more than {most_bytes:,} bytes")
    _check_status(command[0], cast(int, transport.get_returncode()), words.errors)
    return bytes(words.answer)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _check_status(program: str, status: int, errors: bytes) -> None:
    said = errors.decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
    if status == parent_death.NOT_STARTED:
        raise ConfigError(f"{program} cannot be started: {said}", field="engine")
    if status != 0:
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with {status}"
        raise ModelError(f"{os.path.basename(program)} {ended}{said and ': '}{said}")


class _Words(asyncio.SubprocessProtocol):
    """What a program writes: its standard output, and the end of its standard error."""

    def __init__(self, most_bytes: int) -> None:
        new = asyncio.get_running_loop().create_future
        self.answer = bytearray()
        self.errors = b""
        self.ended: asyncio.Future[None] = new()
        self.silent: asyncio.Future[None] = new()  # both are closed
        self.flooded: asyncio.Future[None] = new()
        self._most_bytes = most_bytes
        self._closed = 0

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != _STDOUT:
            self.errors = (self.errors + data)[-_MOST_BYTES_OF_ERRORS:]
        elif not self.flooded.done():
            self.answer += data
            if len(self.answer) > self._most_bytes:
                self.flooded.set_result(None)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._closed += fd >= _STDOUT
        if self._closed == 2 and not self.silent.done():
            self.silent.set_result(None)

    def process_exited(self) -> None:
        self.ended.set_result(None)
