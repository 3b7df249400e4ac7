"""The process of an ``EngineProcess``: a ``DiffusionRunner`` that is told by lines of JSON what to run.

    python -m workers.runners.diffusion.engine_main FD PID_OF_THE_WORKER

It ends when the other end of its socket closes, whatever its model computes then: a worker that
was killed leaves nothing, on Linux not even while a library's call hangs here. Signals are its
worker's business, which drains before it closes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import uvloop

from omni_jobs.errors import ModelError, OmniJobsError
from omni_jobs.pipelines.parameters import DiffusionParameters
from workers.parent_death import end_with_parent
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_process import ARGS, LONGEST_LINE
from workers.runners.spool import SpoolReader
from workers.stages.types import CodecPrompt, Progress

logger = logging.getLogger(__name__)


class EngineMain:
    """Serves one socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._outbox: list[str] = []  # what is said in one turn of the loop goes as one piece

    async def serve(self) -> None:
        start = await self._hear()
        spool = SpoolReader(Path(start["spool"]), start["min_free_bytes"])
        try:
            runner = DiffusionRunner(ARGS.validate_python(start["args"]))
            await runner.start()
        except OmniJobsError as error:
            self._say({"error": error.to_dict()})
            await self._flushed()
            return
        gc.collect()
        gc.freeze()  # the model's modules stay for the process's life: no look for garbage goes through them again
        self._say({"ready": True})
        while "close" not in (told := await self._hear()):
            if "cancel" in told:
                if (task := self._runs.get(told["cancel"])) is not None:
                    task.cancel()
            else:
                task = asyncio.create_task(self._run(runner, spool, told))
                self._runs[told["run"]] = task
                task.add_done_callback(lambda _, number=told["run"]: self._runs.pop(number))  # type: ignore[misc]
        await runner.close()

    async def _run(self, runner: DiffusionRunner, spool: SpoolReader, told: dict[str, Any]) -> None:
        number = told["run"]

        def report(progress: Progress) -> None:
            self._say({"run": number, "done": progress.done, "total": progress.total, "unit": progress.unit})

        try:
            prompt = CodecPrompt(
                codes=torch.tensor(told["codes"], dtype=torch.int64),
                voice=told["voice"],
                parameters=DiffusionParameters.model_validate(told["parameters"]),
                seed=told["seed"],
            )
            output = await runner.run(prompt, report)
            name = f"output{number}"
            spool.write(name, {**output.multimodal_outputs, "values": dict(output.values)})
            self._say({"run": number, "output": name})
        except OmniJobsError as error:
            self._say({"run": number, "error": error.to_dict()})
        except Exception as error:
            logger.exception("run %d", number)
            self._say({"run": number, "error": ModelError(f"{type(error).__name__}: {error}").to_dict()})

    async def _hear(self) -> dict[str, Any]:
        line = await self._reader.readline()
        if not line:
            os._exit(0)  # the worker is gone; the model's thread need not come to an end
        found: dict[str, Any] = json.loads(line)
        return found

    def _say(self, message: dict[str, Any]) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(json.dumps(message))

    def _flush(self) -> None:
        lines, self._outbox = self._outbox, []
        self._writer.write("".join(f"{line}\n" for line in lines).encode())

    async def _flushed(self) -> None:
        await asyncio.sleep(0)
        await self._writer.drain()


async def _main(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST_LINE)
    await EngineMain(reader, writer).serve()
    writer.close()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s: %(levelname)s/engine] %(message)s")
    uvloop.run(_main(socket.socket(fileno=int(sys.argv[1]))))
