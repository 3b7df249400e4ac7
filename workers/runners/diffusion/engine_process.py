"""``EngineProcess``: a diffusion runner in a process of its own, as vLLM's engines have theirs.

In one process with the worker the model's thread shares its interpreter with all that brings it
work. Here it has one for itself: prompts and progress go over a socket as lines of JSON
(``workers.runners.diffusion.engine_main`` is the other end), tensors through the spool.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError
from workers.runners.engine_environment import engine_environment
from workers.runners.runner import ProgressSink
from workers.runners.spool import Spool
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import CodecPrompt, EnginePrompt, OmniModelRunnerOutput, Progress

__all__ = ["ARGS", "LONGEST_LINE", "EngineProcess"]

logger = logging.getLogger(__name__)

ARGS = TypeAdapter(OmniEngineArgs)
LONGEST_LINE = 16 << 20  # bytes; the codes of an hour of speech, 50 in a second, are one
_CLOSE_S = 10.0  # then the process is killed


@dataclass(eq=False, slots=True)
class _Run:
    outcome: asyncio.Future[str]  # the spool file of its output
    progress: ProgressSink


class EngineProcess:
    """Runs codec prompts in another process, many at once. Implements ``workers.runners.runner.Runner``."""

    def __init__(self, args: OmniEngineArgs) -> None:
        self._args = args
        self._numbers = itertools.count()
        self._runs: dict[int, _Run] = {}
        self._spool: Spool | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._dead: str | None = "the engine is not running"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process and load the model there. Raises ConfigError, or EngineDead when it ends meanwhile."""
        self._spool = Spool(self._args.spool_dir, self._args.min_free_bytes)
        try:
            reader = await self._start_process()
            await self._await_loaded(reader)
        except BaseException:
            await self.close()
            raise
        self._dead = None
        self._listening = asyncio.create_task(self._listen(reader))

    async def _start_process(self) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [
                sys.executable,
                "-m",
                "workers.runners.diffusion.engine_main",
                str(theirs.fileno()),
                str(os.getpid()),
            ]
            # It finds its modules where this process found them.
            environment = engine_environment(self._args.device) | {
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path))
            }
            self._process = await asyncio.to_thread(
                lambda: subprocess.Popen(
                    command, env=environment, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL
                )
            )
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        return reader

    async def _await_loaded(self, reader: asyncio.StreamReader) -> None:
        spool = self._open_spool()
        self._tell(
            {
                "args": ARGS.dump_python(self._args, mode="json"),
                "spool": str(spool.directory),
                "min_free_bytes": spool.min_free_bytes,
            }
        )
        line = await reader.readline()
        if not line:
            raise EngineDead("the engine's process ended during its start", stage=self._args.stage)
        if (told := json.loads(line).get("error")) is not None:
            raise OmniJobsError.from_dict(told)

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """What ``DiffusionRunner.run`` gives, and raises; EngineDead as well when the process has ended."""
        if not isinstance(prompt, CodecPrompt):
            raise ModelError(f"a diffusion stage takes codes, not {type(prompt).__name__}", stage=self._args.stage)
        if self._dead is not None:
            raise EngineDead(self._dead, stage=self._args.stage)
        number = next(self._numbers)
        run = self._runs[number] = _Run(asyncio.get_running_loop().create_future(), progress)
        self._tell(
            {
                "run": number,
                "codes": prompt.codes.tolist(),
                "voice": prompt.voice,
                "seed": prompt.seed,
                "parameters": prompt.parameters.model_dump(mode="json"),
            }
        )
        try:
            return self._taken(await run.outcome)
        except asyncio.CancelledError:
            self._tell({"cancel": number})
            if run.outcome.done() and not run.outcome.cancelled() and run.outcome.exception() is None:
                self._open_spool().remove(run.outcome.result())
            raise
        finally:
            del self._runs[number]

    def _taken(self, name: str) -> OmniModelRunnerOutput:
        spool = self._open_spool()
        try:
            found = spool.read(name)
        finally:
            spool.remove(name)
        values = found.pop("values")
        return OmniModelRunnerOutput(multimodal_outputs=found, values=values)

    async def close(self) -> None:
        """End the process; runs not done raise EngineDead. Safe to call twice."""
        self._end("the engine was closed")
        self._tell({"close": True})
        writer, self._writer = self._writer, None
        process, self._process = self._process, None
        if process is not None:
            # While it loads its model it hears nothing.
            await asyncio.to_thread(_end_process, process, _CLOSE_S if self._listening is not None else 0.0)
        if self._listening is not None:
            self._listening.cancel()
        if writer is not None:
            writer.close()
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()

    @property
    def healthy(self) -> bool:
        return self._dead is None

    def _tell(self, message: dict[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Until the process ends, however it does."""
        try:
            while line := await reader.readline():
                self._hear(json.loads(line))
        except Exception:
            logger.exception("%s: the engine's process is not understood", self._args.stage)
        self._end("the engine's process ended")

    def _hear(self, told: dict[str, Any]) -> None:
        run = self._runs.get(told["run"])
        if run is None or run.outcome.done():  # nobody waits for it any more
            if "output" in told:
                self._open_spool().remove(told["output"])
        elif "done" in told:
            run.progress(Progress(told["done"], told["total"], told["unit"]))
        elif "output" in told:
            run.outcome.set_result(told["output"])
        else:
            error = OmniJobsError.from_dict(told["error"])
            if isinstance(error, EngineDead):
                self._end(error.message)
            if not run.outcome.done():
                run.outcome.set_exception(error)

    def _end(self, reason: str) -> None:
        """Nothing runs from here on."""
        self._dead = self._dead or reason
        for run in self._runs.values():
            if not run.outcome.done():
                run.outcome.set_exception(EngineDead(reason, stage=self._args.stage))

    def _open_spool(self) -> Spool:
        if self._spool is None:
            raise EngineDead("the engine is not running", stage=self._args.stage)
        return self._spool


def _end_process(process: subprocess.Popen[bytes], within_s: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
        return
    process.kill()
    process.wait()
