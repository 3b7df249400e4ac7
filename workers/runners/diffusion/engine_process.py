"""``EngineProcess``: a diffusion runner in a process of its own, as vLLM's engines have theirs.

In the worker's process the model's thread would share its interpreter with everything that brings it work. The two
processes (``workers.runners.diffusion.engine_main`` is the other) send each other lines of JSON over a socket, and
tensors through the spool:

    worker → engine   {args, engine, spool, min_free_bytes}              first: load the model
                      {run, prompt, seed, parameters, previews, snapshots, resume}
                                                                         run the prompt in that spool file; ``resume``:
                                                                         null, or {snapshot: its spool file, steps_done}
                      {cancel}                                           end the run of that number
                      {close}                                            end the process
    engine → worker   {ready, resumable} or {error}                      the model is loaded, or why not
                      {dead}                                             why no steps are taken any more
                      {computes}                                         the runs whose steps are taken from now on
                      {run, done, total, unit, resumed_at, picture?}     progress, and the spool file of a new preview
                      {run, snapshot, steps_done}                        a new snapshot's spool file
                      {run, refused} or {run, missed}                    why not to go on from one, or to have a new one
                      {run, output} or {run, error}                      the output's spool file, or the run's error
                      {run, dropped}                                     a cancelled run takes part in no step any more
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
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError
from omni_jobs.pipelines.engine_settings import EngineSettings
from workers.runners.cancellation import settled
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.snapshot_origin import snapshot_origin
from workers.runners.engine_environment import engine_environment
from workers.runners.runner import CURRENT_RUN, ProgressSink, Snapshots
from workers.runners.spool import Spool
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, Progress, Snapshot, TensorTree

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

ARGS = TypeAdapter(OmniEngineArgs)
"""Writes and reads engine arguments as JSON."""

MAX_LINE_BYTES = 1 << 20
"""The longest message; tensors and values are in the spool."""

PROGRESS_FIELDS = ("done", "total", "unit", "resumed_at")
"""Of a ``Progress``, what a message of progress has by the same names."""

_CLOSE_S = 10.0  # then the process is killed


@dataclass(eq=False, slots=True)
class _Run:
    outcome: asyncio.Future[str]  # the spool file of its output
    over: asyncio.Future[None]  # the engine has nothing to do for it any more
    progress: ProgressSink
    snapshots: Snapshots | None
    picture: torch.Tensor | None = None  # the newest preview
    stage_run: int = field(default_factory=CURRENT_RUN.get)
    is_sent: bool = False


class EngineProcess:
    """Runs the prompts of a diffusion model in a process that it starts. Implements ``ResumableRunner``."""

    _spool: Spool  # from ``start`` on; it outlives ``close``

    def __init__(self, args: OmniEngineArgs) -> None:
        """Make a runner whose process is not started yet."""
        self._args = args
        self._numbers = itertools.count()
        self._runs: dict[int, _Run] = {}
        self._held = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._dead: str | None = "the engine is not running"  # why nothing runs
        self._is_resumable = False
        self._computes: Sequence[int] = ()  # the numbers of runs

    @property
    def computing(self) -> Collection[int]:
        """The stage runs whose steps the engine takes now."""
        return {self._runs[number].stage_run for number in self._computes if number in self._runs}

    @property
    def pid(self) -> int | None:
        """The process's id; None before ``start`` and after ``close``."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Load the model in a new process. Raises ConfigError for what cannot be loaded, EngineDead when it ends."""
        self._spool = self._held.enter_context(closing(Spool(self._args.spool_dir, self._args.min_free_bytes)))
        try:
            reader = await self._start_process()
            await self._wait_until_loaded(reader)
        except BaseException:
            await self.close()
            raise
        self._dead = None
        self._receiving = asyncio.create_task(self._receive_all(reader))

    async def _start_process(self) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        with theirs:
            module = "workers.runners.diffusion.engine_main"
            command = [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid())]
            # It finds its modules where this process found them.
            modules = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = await asyncio.to_thread(
                lambda: subprocess.Popen(
                    command,
                    env=engine_environment(self._args.device) | modules,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                )
            )
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
        return reader

    async def _wait_until_loaded(self, reader: asyncio.StreamReader) -> None:
        args = ARGS.dump_python(replace(self._args, engine=EngineSettings(), servers={}), mode="json")
        engine = self._args.engine.model_dump(mode="json", exclude_unset=True)
        spool = self._spool
        self._send(
            {"args": args, "engine": engine, "spool": str(spool.directory), "min_free_bytes": spool.min_free_bytes}
        )
        line = await reader.readline()
        if not line:
            raise EngineDead("the engine's process ended during its start", stage=self._args.stage)
        answer = json.loads(line)
        if (error := answer.get("error")) is not None:
            raise OmniJobsError.from_dict(error)
        self._is_resumable = answer["resumable"]
        if not self._is_resumable:
            logger.info("%s: its model cannot be resumed: after a loss all steps are taken again", self._args.stage)

    @property
    def snapshot_origin(self) -> Mapping[str, Any] | None:
        return snapshot_origin(self._args) if self._is_resumable else None

    async def run(
        self, prompt: EnginePrompt, progress: ProgressSink, snapshots: Snapshots | None = None
    ) -> OmniModelRunnerOutput:
        """Run one prompt as ``DiffusionRunner.run`` does; the output's tensors are read-only views of a spool file.

        A cancelled run ends once the engine has dropped it, after the step under way. Raises EngineDead also when the
        process has ended, and StorageFull when the spool has no room.
        """
        if not isinstance(prompt, DiffusionPrompt):
            raise ModelError(
                f"a diffusion stage takes no {type(prompt).__name__}", field="kind", stage=self._args.stage
            )
        if self._dead is not None:
            raise EngineDead(self._dead, stage=self._args.stage)
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        run = self._runs[number] = _Run(loop.create_future(), loop.create_future(), progress, snapshots)
        name, resume = f"prompt{number}", f"resume{number}"
        try:
            await self._write(name, prompt.tensors, prompt.values)
            message = {
                "run": number,
                "prompt": name,
                "seed": prompt.seed,
                "parameters": prompt.parameters.model_dump(mode="json"),
                "previews": prompt.previews,
                "snapshots": snapshots is not None,
                "resume": None,
            }
            if snapshots is not None and (newest := snapshots.newest) is not None:
                await self._write(resume, newest.tensors, newest.values)
                message["resume"] = {"snapshot": resume, "steps_done": newest.steps_done}
            self._send(message)
            run.is_sent = True
            tensors, values = self._spool.take(await run.outcome)
            return OmniModelRunnerOutput(multimodal_outputs=tensors, values=values)
        except asyncio.CancelledError:
            if run.is_sent and self._dead is None:
                self._send({"cancel": number})
                await settled(run.over)
            if run.outcome.done() and not run.outcome.cancelled() and run.outcome.exception() is None:
                self._spool.remove(run.outcome.result())
            raise
        finally:
            del self._runs[number]
            self._spool.remove(name)
            self._spool.remove(resume)

    async def _write(self, name: str, tensors: Mapping[str, TensorTree], values: Mapping[str, Any]) -> None:
        """Write a spool file on a thread. If the caller is cancelled meanwhile, nothing is left of it.

        Raises EngineDead when the spool is gone, without which no prompt can run, and the errors of ``Spool.write``.
        """
        writing = asyncio.ensure_future(asyncio.to_thread(self._spool.write, name, tensors, values))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(lambda _: self._spool.remove(name))
            raise
        except OSError as error:
            raise EngineDead(f"the spool is gone: {error}", stage=self._args.stage) from error

    def _put(self, snapshots: Snapshots, name: str, steps_done: int) -> None:
        try:
            tensors, values = self._spool.take(name)
        except OmniJobsError as error:
            snapshots.miss(error)
        else:
            snapshots.put(Snapshot(tensors, values, steps_done))

    def _read_picture(self, name: str) -> torch.Tensor | None:
        try:
            picture: torch.Tensor = self._spool.take(name)[0]["picture"]
            return picture
        except OmniJobsError as error:
            logger.warning("%s: no preview: %s", self._args.stage, error)
            return None

    async def close(self) -> None:
        """End the process; runs in progress raise EngineDead. Safe to call twice."""
        self._fail_all("the engine was closed")
        self._send({"close": True})
        writer, self._writer = self._writer, None
        process, self._process = self._process, None
        if process is not None:
            # While it loads its model it reads no message.
            await asyncio.to_thread(_end_process, process, _CLOSE_S if self._receiving is not None else 0.0)
        if self._receiving is not None:
            self._receiving.cancel()
        if writer is not None:
            writer.close()
        self._held.close()

    @property
    def healthy(self) -> bool:
        """True from ``start`` until the process ends or ``close``. The worker ends once its runner is not healthy."""
        return self._dead is None

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _receive_all(self, reader: asyncio.StreamReader) -> None:
        """Handle messages until the process ends, however it does."""
        try:
            while line := await reader.readline():
                self._receive(json.loads(line))
        except Exception:
            logger.exception("%s: a message of the engine's process cannot be read", self._args.stage)
        self._fail_all("the engine's process ended")

    def _receive(self, message: dict[str, Any]) -> None:
        if "computes" in message:
            self._computes = message["computes"]
            return
        if "dead" in message:
            self._fail_all(message["dead"])
            return
        run = self._runs.get(message["run"])
        if run is not None and message.keys() & {"output", "error", "dropped"} and not run.over.done():
            run.over.set_result(None)
        if run is None or run.outcome.done():  # nobody waits for it any more
            for name in message.keys() & {"output", "picture", "snapshot"}:
                self._spool.remove(message[name])
        elif "done" in message:
            if "picture" in message:
                run.picture = self._read_picture(message["picture"])
            run.progress(Progress(**{name: message[name] for name in PROGRESS_FIELDS}, picture=run.picture))
        elif run.snapshots is not None and "snapshot" in message:
            self._put(run.snapshots, message["snapshot"], message["steps_done"])
        elif run.snapshots is not None and "refused" in message:
            run.snapshots.refuse(OmniJobsError.from_dict(message["refused"]))
        elif run.snapshots is not None and "missed" in message:
            run.snapshots.miss(OmniJobsError.from_dict(message["missed"]))
        elif "output" in message:
            run.outcome.set_result(message["output"])
        else:
            error = OmniJobsError.from_dict(message["error"])
            if isinstance(error, EngineDead):
                self._fail_all(error.message)
            if not run.outcome.done():
                run.outcome.set_exception(error)

    def _fail_all(self, reason: str) -> None:
        """Refuse new runs, and let those in progress raise EngineDead."""
        self._dead = self._dead or reason
        for run in self._runs.values():
            if not run.outcome.done():
                run.outcome.set_exception(EngineDead(reason, stage=self._args.stage))
            if not run.over.done():
                run.over.set_result(None)


def _end_process(process: subprocess.Popen[bytes], within_s: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
        return
    process.kill()
    process.wait()
