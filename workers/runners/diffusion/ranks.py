"""``Ranks``: the second device of a diffusion engine, on which the unconditional pass of each step runs.

The engine's own device is rank 0, and a process that it starts (``workers.runners.diffusion.second_rank``) is rank 1.
Rank 0 owns every row; rank 1 makes a row of the same prompt, and gets its latents anew in each step. The latents and
the predictions go by ``torch.distributed``: gloo on CPUs, NCCL on cards. What they mean goes by lines of JSON over a
socket, and a prompt's tensors by a directory of their own:

    0 → 1   {args, engine, spool, timeout_s}        first: load the model
            {rows: [{number, steps_done, prompt?}], shape, dropped}
                                                    run the unconditional pass of these rows, whose latents follow
    1 → 0   {ready} or {error}                      the model is loaded, or why not
            {done} or {error}                       the predictions follow, or why there are none

Rank 0 waits ``rank_timeout_s`` for an answer, and longer while models are loaded. Then it gives the engine up: a rank
that ended, hangs or comes late is an EngineDead of all rows. Rank 1 waits for the next message without limit, because
the end of rank 0 ends it.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import distributed

from omni_jobs.errors import EngineDead, ModelError, OmniJobsError, OutOfMemory, StageError, StorageFull
from omni_jobs.pipelines.engine_settings import EngineSettings
from workers.runners.diffusion.engine_process import ARGS
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.engine_environment import engine_environment
from workers.runners.spool import Spool
from workers.stages.engine_args import OmniEngineArgs

logger = logging.getLogger(__name__)

_WORLD: Final = 2
_LOAD_S: Final = 600.0  # for which each rank waits for the other at least, once its own model is loaded
_ENDS_WITHIN_S: Final = 1.0  # in which the kernel reaps a process whose connections are closed
_SECOND: Final = "the engine's second device"


class DividedRow(Protocol):
    """A row that both ranks have."""

    prompt: DiffusionPrompt[Any] | None
    latents: torch.Tensor
    steps_done: int
    elsewhere: RowElsewhere | None


class RowElsewhere:
    """A row as rank 1 has it: its number there. When rank 0 lets go of the row, rank 1 is told."""

    def __init__(self, number: int, dropped: list[int]) -> None:
        self.number = number
        weakref.finalize(self, dropped.append, number)


class RankTensors:
    """Tensors between the two ranks, by ``torch.distributed``. For the thread that runs the model."""

    def __init__(self, rank: int, device: torch.device, timeout_s: float) -> None:
        self._other = 1 - rank
        self.device = device
        self._timeout_s = timeout_s

    @classmethod
    def join(cls, rank: int, directory: Path, device: torch.device, timeout_s: float) -> RankTensors:
        """Join the group of both ranks, which meet in ``directory``. Raises EngineDead when the other does not come."""
        if device.type == "cuda":
            torch.cuda.set_device(device)
        store = distributed.FileStore(str(directory / "ranks"), _WORLD)  # type: ignore[attr-defined]  # not listed there
        with _of_other_rank(max(timeout_s, _LOAD_S)):
            distributed.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=rank,
                world_size=_WORLD,
                timeout=timedelta(seconds=max(timeout_s, _LOAD_S)),
                device_id=device if device.type == "cuda" else None,
            )
        return cls(rank, device, timeout_s)

    def send(self, tensor: torch.Tensor) -> None:
        """Send a tensor. Raises EngineDead."""
        with _of_other_rank(self._timeout_s):
            self._wait(distributed.isend(tensor.contiguous(), self._other))

    def receive(self, into: torch.Tensor) -> None:
        """Receive a tensor of this shape and dtype. Raises EngineDead."""
        with _of_other_rank(self._timeout_s):
            self._wait(distributed.irecv(into, self._other))

    def _wait(self, work: Any) -> None:
        if self.device.type == "cpu":
            work.wait(timedelta(seconds=self._timeout_s))
        else:
            work.wait()  # the device does; the other's answer by the socket comes before

    def settle(self) -> None:
        """Return once the device has computed everything, so that what failed there is known."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def leave(self) -> None:
        """Leave the group. On cards its process ends instead: NCCL would wait for a rank that hangs."""
        if self.device.type == "cpu":
            distributed.destroy_process_group()


@contextmanager
def _of_other_rank(within_s: float) -> Iterator[None]:
    """Turn an error of ``torch.distributed`` into EngineDead: the other rank ended, or did not answer in time."""
    begun = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        if time.monotonic() - begun >= within_s:
            raise EngineDead(_late(within_s)) from error
        raise EngineDead(f"{_SECOND} does not answer: {error}") from error


def _late(within_s: float) -> str:
    return f"{_SECOND} has not answered within {within_s:g} s (engine.rank_timeout_s)"


class Ranks:
    """Rank 1 as rank 0 sees it. For the thread that runs the model, which must live as long."""

    def __init__(self, args: OmniEngineArgs, engine: DiffusionEngine) -> None:
        """Prepare the rank on the device behind the engine's own; start nothing."""
        self._args = args
        self._engine = engine
        self._timeout_s = engine.rank_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._unread = b""
        self._spool: Spool | None = None
        self._tensors: RankTensors | None = None
        self._numbers = itertools.count()
        self._dropped: list[int] = []

    def start(self) -> None:
        """Start the process, which begins to load its model while this one loads its own."""
        ours, theirs = socket.socketpair()
        self._spool = Spool(self._args.spool_dir, self._args.min_free_bytes)
        self._connection = ours
        with theirs:
            command = [sys.executable, "-m", "workers.runners.diffusion.second_rank", str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, str(os.getpid())],
                env=engine_environment(self._args.device) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        first = self._args.device_index or 0
        args = replace(self._args, engine=EngineSettings(), servers={}, guard=None)
        args = replace(args, device_index=first + 1 if self._args.device == "cuda" else None)
        self._send(
            {
                "args": ARGS.dump_python(args, mode="json"),
                "engine": self._engine.model_dump(mode="json", exclude_unset=True),
                "spool": str(self._spool.directory),
                "timeout_s": self._timeout_s,
            }
        )

    def join(self, device: torch.device) -> None:
        """Wait until the rank has loaded its model, and join it. Raises its ConfigError, and EngineDead."""
        self._answer(max(self._timeout_s, _LOAD_S))
        self._tensors = RankTensors.join(0, self._directory, device, self._timeout_s)

    def wait(self, within_s: float | None = None) -> str:
        """Wait for the end of the process, and return what to say of it. Raises subprocess.TimeoutExpired."""
        status = None if self._process is None else self._process.wait(within_s)
        return f"{_SECOND} ended with status {status}"

    @contextmanager
    def _its_end_known(self) -> Iterator[None]:
        """Give the rank up where it breaks off or comes late, and say how its process ended, if it did.

        Its end says more than the break. A late answer is never read: it would be taken for that to another question.
        """
        try:
            yield
        except EngineDead as error:
            if self._process is not None:
                with suppress(subprocess.TimeoutExpired):
                    raise EngineDead(self.wait(_ENDS_WITHIN_S), stage=self._args.stage) from error
            self._hang_up()
            raise

    def begin(self, rows: Sequence[Any]) -> None:
        """Let the rank run the unconditional pass of these rows. ``predictions`` or ``discard`` must follow."""
        latents = torch.stack([row.latents for row in rows])
        dropped = list(self._dropped)
        given = self._all_given(rows)
        with self._its_end_known():
            self._send({"rows": given, "shape": list(latents.shape), "dropped": dropped})
            del self._dropped[: len(dropped)]
            for row, each in zip(rows, given, strict=True):
                row.elsewhere = row.elsewhere or RowElsewhere(each["number"], self._dropped)
            self._joined.send(latents)

    def predictions(self, rows: Sequence[Any]) -> torch.Tensor:
        """Return where the pass of each row goes, float32 [B, …] of their latents' shape.

        Raises the error of the rank's model, and EngineDead.
        """
        into = torch.empty((len(rows), *rows[0].latents.shape), dtype=torch.float32, device=self._joined.device)
        with self._its_end_known():
            try:
                self._answer(self._timeout_s)
            except OmniJobsError:
                for row in rows:
                    row.elsewhere = None
                raise
            self._joined.receive(into)
        return into

    def discard(self, rows: Sequence[Any]) -> None:
        """Take the rank's answer, which is of no use any more, or the error of its model. Raises EngineDead."""
        try:
            self.predictions(rows)
        except EngineDead:
            raise
        except StageError as error:
            logger.info("a pass on the second device, which nobody needs, failed: %s", error)

    def close(self) -> None:
        """End the process and leave the group. Safe to call twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._hang_up()
        if self._tensors is not None:
            self._tensors.leave()
            self._tensors = None
        if self._spool is not None:
            self._spool.close()

    def _hang_up(self) -> None:
        """Close the connection, which ends the rank once it reads. Safe to call twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _directory(self) -> Path:
        if self._spool is None:
            raise EngineDead(f"{_SECOND} is not started", stage=self._args.stage)
        return self._spool.directory

    @property
    def _joined(self) -> RankTensors:
        if self._tensors is None:
            raise EngineDead(f"{_SECOND} is not there", stage=self._args.stage)
        return self._tensors

    def _all_given(self, rows: Sequence[DividedRow]) -> list[dict[str, Any]]:
        """Return the rows as the message has them; their prompts are in the spool. Raises OutOfMemory if it is full."""
        given: list[dict[str, Any]] = []
        try:
            for row in rows:
                given.append(self._given(row))
        except OmniJobsError as error:
            for each in given:
                if "prompt" in each and self._spool is not None:
                    self._spool.remove(each["prompt"]["file"])
            if isinstance(error, StorageFull):
                raise OutOfMemory(f"no room for a prompt of {_SECOND}: {error}") from error
            raise
        return given

    def _given(self, row: DividedRow) -> dict[str, Any]:
        """Return the row as the message has it, with its prompt if the rank has no such row."""
        if row.elsewhere is not None:
            return {"number": row.elsewhere.number, "steps_done": row.steps_done}
        number, prompt = next(self._numbers), row.prompt
        if prompt is None or self._spool is None:
            raise ModelError("a row on two devices must have its prompt", field="prompt")
        file = f"prompt{number}"
        self._spool.write(file, prompt.tensors, prompt.values)
        begun = {"file": file, "seed": prompt.seed, "parameters": prompt.parameters.model_dump(mode="json")}
        return {"number": number, "steps_done": row.steps_done, "prompt": begun}

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise EngineDead(f"{_SECOND} is gone: {error}", stage=self._args.stage) from error

    def _answer(self, within_s: float) -> None:
        """Wait for the rank's next line. Raises the error that it has, and EngineDead where none comes in time."""
        self._socket.settimeout(within_s)
        while b"\n" not in self._unread:
            try:
                more = self._socket.recv(1 << 16)
            except TimeoutError:
                raise EngineDead(_late(within_s), stage=self._args.stage) from None
            except OSError as error:
                raise EngineDead(f"{_SECOND} is gone: {error}", stage=self._args.stage) from error
            if not more:
                raise EngineDead(f"{_SECOND} ended", stage=self._args.stage)
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        if (failure := json.loads(line).get("error")) is not None:
            raise OmniJobsError.from_dict(failure)

    @property
    def _socket(self) -> socket.socket:
        if self._connection is None:
            raise EngineDead(f"{_SECOND} is not connected", stage=self._args.stage)
        return self._connection
