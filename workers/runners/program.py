"""``run_program``: runs a program for one prompt, for runners whose work another program does."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from omni_jobs.errors import ConfigError, ModelError
from workers import parent_death
from workers.runners.engine_environment import engine_environment
from workers.runners.settled import settled

_CHUNK_BYTES = 1 << 16
_SHOWN_CHARACTERS = 500  # the end of what it wrote about an error


async def run_program(command: Sequence[str], data: bytes = b"", *, most_bytes: int = 1 << 28) -> bytes:
    """Give a program ``data`` as its standard input, and return its standard output.

    It gets this process's environment without the secrets. Cancelling kills it and what it has started in its process
    group, and nothing that it starts there outlives it; the kernel kills it with this process. Raises ConfigError for a
    program that cannot be started, and ModelError for one that ends otherwise than with 0, with the end of its standard
    error, or writes more than ``most_bytes``.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=engine_environment("auto"),
        start_new_session=True,
    )
    talk = asyncio.ensure_future(_talk(process, data, most_bytes))
    try:
        answer, errors = await talk
        status = await process.wait()
    finally:
        talk.cancel()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await settled(asyncio.ensure_future(process.wait()))
    said = errors.decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
    if status == parent_death.NOT_STARTED:
        raise ConfigError(f"{command[0]} cannot be started: {said}", field="engine")
    if status != 0:
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with {status}"
        raise ModelError(f"{os.path.basename(command[0])} {ended}{said and ': '}{said}")
    return answer


async def _talk(process: asyncio.subprocess.Process, data: bytes, most_bytes: int) -> tuple[bytes, bytes]:
    """Return what the program wrote to its standard output, all of it, and the end of its standard error."""
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise RuntimeError("the program has no pipes")
    try:
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(_answer(process.stdout, most_bytes))
            errors = group.create_task(_end_of(process.stderr))
            group.create_task(_write(process.stdin, data))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return answer.result(), errors.result()


async def _answer(stream: asyncio.StreamReader, most_bytes: int) -> bytes:
    answer = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        answer += chunk
        if len(answer) > most_bytes:
            raise ModelError(f"the program wrote more than {most_bytes:,} bytes")
    return bytes(answer)


async def _end_of(stream: asyncio.StreamReader) -> bytes:
    end = b""
    while chunk := await stream.read(_CHUNK_BYTES):
        end = (end + chunk)[-4 * _SHOWN_CHARACTERS :]
    return end


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):  # it reads no more than it needs
        stream.write(data)
        await stream.drain()
        stream.close()
        await stream.wait_closed()
