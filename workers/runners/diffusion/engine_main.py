"""The program that an ``EngineProcess`` starts: a ``DiffusionRunner``, controlled by lines of JSON on a socket.

    python -m workers.runners.diffusion.engine_main FD PID_OF_THE_WORKER

``workers.runners.diffusion.engine_process`` lists the messages. While the model loads, none is read. After that this
process ends when the socket's other end closes, whatever its model computes then. The kernel kills it when its worker
ends (``workers.parent_death``). It ignores SIGINT and SIGTERM, because its worker drains before it closes the socket.
"""

import asyncio
import gc
import itertools
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvloop

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError, StorageError, StorageUnavailable
from omni_jobs.logs.setup import configure
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.plugins import named_class
from workers.parent_death import end_with_parent
from workers.runners.declared_component import declared_component
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_process import ARGS, MAX_LINE_BYTES, PROGRESS_FIELDS
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.runner import CURRENT_RUN
from workers.runners.spool import SpoolFiles
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import Progress, Snapshot, TensorTree

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class EngineMain:
    """Runs the prompts that one worker sends over a socket, in a ``DiffusionRunner``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._runs: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Load the model and run prompts until the worker sends ``close``; send the error and return if that fails."""
        start = await self._receive()
        usual = gc.get_threshold()
        gc.set_threshold(100_000, 50, 50)  # imports make a million objects, and hardly any of them is garbage
        spool = SpoolFiles(Path(start["spool"]), start["min_free_bytes"])
        try:
            args = replace(ARGS.validate_python(start["args"]), engine=DiffusionEngine(**start["engine"]))
            runner = DiffusionRunner(
                args,
                on_computing=lambda computing: self._send({"computes": sorted(computing)}),
                on_dead=lambda reason: self._send({"dead": reason}),
            )
            parameters_type = _parameters_type(args)
            await runner.start()
        except OmniJobsError as error:
            self._send({"error": error.to_dict()})
            return
        gc.collect()
        gc.freeze()  # the loaded modules stay for the process's life, so the collector need not go through them again
        gc.set_threshold(*usual)
        self._send({"ready": True, "resumable": runner.snapshot_origin is not None})
        while "close" not in (message := await self._receive()):
            if "cancel" in message:
                if (task := self._runs.get(message["cancel"])) is not None:
                    task.cancel()
            else:
                run = _EngineRun(message, self._send, spool)
                task = asyncio.create_task(run.produce(runner, parameters_type))
                self._runs[message["run"]] = task
                task.add_done_callback(partial(self._forget, message["run"]))
        await runner.close()

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self._runs[number]
        if task.cancelled():
            self._send({"run": number, "dropped": True})

    async def _receive(self) -> dict[str, Any]:
        line = await self._reader.readline()
        if not line:
            os._exit(0)  # the worker is gone; the model's thread need not come to an end
        message: dict[str, Any] = json.loads(line)
        return message

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")


class _EngineRun:
    """One run on the engine's side. Implements ``Snapshots``; tensors come and go through the spool."""

    def __init__(self, message: dict[str, Any], send: Callable[[dict[str, Any]], None], spool: SpoolFiles) -> None:
        """Take the worker's message that asks for the run."""
        self._message = message
        self._number: int = message["run"]
        self._send_line = send
        self._spool = spool
        self._files = itertools.count()
        self._picture: torch.Tensor | None = None  # the last that was sent
        self._newest: Snapshot | None = None

    async def produce(self, runner: DiffusionRunner, parameters_type: type[StageParameters]) -> None:
        """Run the prompt and send its output or its error."""
        message = self._message
        CURRENT_RUN.set(self._number)
        try:
            tensors, values = self._spool.take(message["prompt"])
            parameters = parameters_type.model_validate(message["parameters"], strict=False)
            prompt = DiffusionPrompt(tensors, values, parameters, message["seed"], message["previews"])
            if (resume := message["resume"]) is not None:
                self._newest = Snapshot(*self._spool.take(resume["snapshot"]), resume["steps_done"])
            output = await runner.run(prompt, self._report, self if message["snapshots"] else None)
            self._send(output=self._written("output", output.multimodal_outputs, output.values))
        except OmniJobsError as error:
            self._send(error=error.to_dict())
        except OSError as error:  # the spool is gone, without which no prompt can run
            self._send(error=EngineDead(f"the spool is gone: {error}").to_dict())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            logger.exception("run %d", self._number)
            self._send(error=ModelError(f"{type(error).__name__}: {error}").to_dict())

    def _send(self, **fields: Any) -> None:
        self._send_line({"run": self._number, **fields})

    def _written(self, kind: str, tensors: Mapping[str, TensorTree], values: Mapping[str, Any]) -> str:
        """Return the name of a new spool file that has these tensors and values."""
        name = f"{kind}{self._number}x{next(self._files)}"
        self._spool.write(name, tensors, values)
        return name

    def _report(self, progress: Progress) -> None:
        """Send progress, and a new preview with it."""
        fields = {name: getattr(progress, name) for name in PROGRESS_FIELDS}
        if progress.picture is not None and progress.picture is not self._picture:
            self._picture = cast("torch.Tensor", progress.picture)  # the model runner's previews are torch's
            try:
                fields["picture"] = self._written("picture", {"picture": self._picture}, {})
            except StorageError as error:
                logger.warning("run %d: no preview: %s", self._number, error)
        self._send(**fields)

    @property
    def newest(self) -> Snapshot | None:
        return self._newest

    def put(self, snapshot: Snapshot) -> None:
        try:
            name = self._written("snapshot", snapshot.tensors, snapshot.values)
        except OmniJobsError as error:
            self.miss(error)
        except OSError as error:  # the worker closes
            self.miss(StorageUnavailable(f"the spool: {error}"))
        else:
            self._send(snapshot=name, steps_done=snapshot.steps_done)

    def refuse(self, error: OmniJobsError) -> None:
        self._newest = None
        self._send(refused=error.to_dict())

    def miss(self, error: OmniJobsError) -> None:
        self._send(missed=error.to_dict())


def _parameters_type(args: OmniEngineArgs) -> type[StageParameters]:
    _, component = declared_component(args, "diffusion")
    return StageParameters if component.parameters is None else named_class(component.parameters, StageParameters)


async def _main(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE_BYTES)
    await EngineMain(reader, writer).serve()
    writer.close()
    await writer.wait_closed()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    configure("json" if os.environ.get("OMNI_JOBS_LOG") == "json" else "text", "engine")
    uvloop.run(_main(socket.socket(fileno=int(sys.argv[1]))))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # to free object by object what is left takes seconds
