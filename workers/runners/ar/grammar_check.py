"""``GrammarCheck``: whether a JSON schema becomes a grammar in time, found out in a process of its own.

vLLM compiles a schema in its engine, where nothing ends what takes for ever: further schemas would wait behind it
until the engine is killed. So each schema is compiled here first, and one that takes too long never gets there.
"""

import asyncio
import json
import os
import signal
import struct
import sys
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256

from omni_jobs.errors import EngineDead, InvalidRequest
from workers import parent_death
from workers.runners.cancellation import settled
from workers.runners.engine_environment import engine_environment

LIMIT_S = 10.0
"""Seconds that a schema may take to become a grammar."""
_START_S = 120.0  # for the process to import its library, on a host that is busy
_KEPT = 1024  # answers


class GrammarCheck:
    """Checks JSON schemas one after the other in a process that it starts at the first, and again after one that hung.

    It keeps the answers to the last 1,024 schemas.
    """

    def __init__(self, vocabulary: str, limit_s: float | None = None) -> None:
        """Check for a tokenizer of this vocabulary, which xgrammar wrote. Nothing is started yet.

        ``limit_s``: the seconds that a schema may take; None: ``LIMIT_S``.
        """
        self._vocabulary = vocabulary.encode()
        self._limit_s = LIMIT_S if limit_s is None else limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._status: int | None = None  # of the last one that ended
        self._turn = asyncio.Lock()
        self._answers: OrderedDict[bytes, str | None] = OrderedDict()

    async def check(self, schema: str, field: str) -> None:
        """Return if the schema becomes a grammar in time.

        Raises InvalidRequest naming the field if it does not, and EngineDead for a process that cannot be started.
        """
        digest = sha256(schema.encode()).digest()
        async with self._turn:
            if digest not in self._answers:
                self._answers[digest] = await self._compile(schema.encode())
                if len(self._answers) > _KEPT:
                    self._answers.popitem(last=False)
            self._answers.move_to_end(digest)
            problem = self._answers[digest]
        if problem is not None:
            raise no_grammar(problem, field)

    async def _compile(self, schema: bytes) -> str | None:
        """Return what is wrong with a schema; None: nothing is."""
        try:
            process = await self._started()
            return await _answer(process, schema, self._limit_s)
        except TimeoutError:
            await self.close()
            return f"that takes longer than {self._limit_s:g} s"
        except (EOFError, OSError) as error:
            await self.close()
            if self._status in (-signal.SIGKILL, -signal.SIGTERM):  # somebody's, who does not blame the schema
                raise EngineDead("the compiler of grammars was killed") from error
            return "the compiler dies of it"
        except BaseException:
            await self.close()
            raise

    async def _started(self) -> asyncio.subprocess.Process:
        """Return the process, which has answered once: its library is loaded. Raises EngineDead."""
        if self._process is not None:
            return self._process
        python = (sys.executable, "-m", "workers.vllm_hooks.grammar_compiler")
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *python),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=engine_environment("auto"),
            )
            _send(process, self._vocabulary)
            await _answer(process, b"{}", _START_S)
            return process
        except (EOFError, OSError, TimeoutError) as error:
            raise EngineDead(f"the compiler of grammars does not start: {error!r}") from error

    async def close(self) -> None:
        """End the process; the next check starts another. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            if process.stdout is not None and not process.stdout.at_eof():
                with suppress(ProcessLookupError):
                    process.kill()
            await settled(asyncio.ensure_future(process.wait()))
            self._status = process.returncode


def no_grammar(problem: str, field: str) -> InvalidRequest:
    """Return the error of a schema that becomes no grammar: whoever wrote it can write another."""
    return InvalidRequest(f"no grammar can be made of the schema: {problem}", field=field)


def _send(process: asyncio.subprocess.Process, message: bytes) -> None:
    if process.stdin is None:
        raise EOFError
    process.stdin.write(struct.pack(">Q", len(message)) + message)


async def _answer(process: asyncio.subprocess.Process, schema: bytes, limit_s: float) -> str | None:
    """Return the process's answer. Raises TimeoutError, and EOFError or OSError for a process that has died."""
    if process.stdout is None:
        raise EOFError
    async with asyncio.timeout(limit_s):
        _send(process, schema)
        line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    answer: str | None = json.loads(line)
    return answer
