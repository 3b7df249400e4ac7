"""The program of a diffusion engine's second device: it runs the unconditional pass of each step.

    python -m workers.runners.diffusion.second_rank FD PID_OF_THE_ENGINE

``workers.runners.diffusion.ranks`` lists the messages. It ends when the socket's other end closes, and the kernel kills
it when the engine ends, whatever it computes then (``workers.parent_death``).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from omni_jobs.errors import EngineDead, OmniJobsError
from omni_jobs.logs.setup import configure
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.plugins import named_class
from workers.parent_death import end_with_parent
from workers.runners.declared_component import declared_component
from workers.runners.diffusion.engine_process import ARGS
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.gpu_diffusion_worker import GPUDiffusionWorker
from workers.runners.diffusion.model import DividedModel
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.ranks import RankTensors
from workers.runners.model_failure import model_failure
from workers.runners.spool import SpoolFiles
from workers.stages.engine_args import OmniEngineArgs

logger = logging.getLogger(__name__)


class SecondRank:
    """The rows of the engine's steps, as this device keeps them."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rb")
        self._connection = connection
        self._rows: dict[int, Any] = {}

    def serve(self) -> None:
        """Load the model and run the passes that the engine asks for, until it goes."""
        start = self._receive()
        try:
            args: OmniEngineArgs = ARGS.validate_python(start["args"])
            args = replace(args, engine=DiffusionEngine(**start["engine"]))
            worker = GPUDiffusionWorker(args)
            model = worker.load()
            _, component = declared_component(args, "diffusion")
            self._parameters = named_class(component.parameters or _NO_PARAMETERS, StageParameters)
        except OmniJobsError as error:
            self._send({"error": error.to_dict()})
            return
        self._model: DividedModel = model  # type: ignore[assignment]  # the worker has checked it
        self._spool = SpoolFiles(Path(start["spool"]))
        self._send({"ready": True})
        self._tensors = RankTensors.join(1, Path(start["spool"]), worker.device, start["timeout_s"])
        while True:
            self._step(self._receive())

    @torch.inference_mode()
    def _step(self, message: Mapping[str, Any]) -> None:
        """Run one forward, or say why it failed: then the engine gets no tensors, and sends the rows anew."""
        for number in message["dropped"]:
            self._rows.pop(number, None)
        latents = torch.empty(message["shape"], dtype=torch.float32, device=self._tensors.device)
        self._tensors.receive(latents)
        try:
            rows = [self._row(each) for each in message["rows"]]
            predictions = torch.stack(list(self._model.unconditional(rows, latents.unbind()))).float()
            self._tensors.settle()
        except BaseException as error:
            for each in message["rows"]:
                self._rows.pop(each["number"], None)
            failure = model_failure(error)
            self._send({"error": failure.to_dict()})
            if isinstance(failure, EngineDead):
                raise
            return
        self._send({"done": True})
        self._tensors.send(predictions)

    def _row(self, given: Mapping[str, Any]) -> Any:
        number = given["number"]
        if (begun := given.get("prompt")) is not None:
            tensors, values = self._spool.take(begun["file"])
            parameters = self._parameters.model_validate(begun["parameters"], strict=False)
            self._rows[number] = self._model.begin(DiffusionPrompt(tensors, values, parameters, begun["seed"]))
        row = self._rows[number]
        row.steps_done = given["steps_done"]
        return row

    def _receive(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            os._exit(0)
        message: dict[str, Any] = json.loads(line)
        return message

    def _send(self, message: Mapping[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")


_NO_PARAMETERS = "omni_jobs.pipelines.parameters:StageParameters"

if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    configure("json" if os.environ.get("OMNI_JOBS_LOG") == "json" else "text", "engine")
    try:
        SecondRank(socket.socket(fileno=int(sys.argv[1]))).serve()
    except BaseException:
        logger.exception("the second device")
        os._exit(1)
    os._exit(0)
