"""``GPUDiffusionModelRunner``: the rows of a diffusion stage, from noise to output, step by step.

A charter: only the life of rows in the model belongs here: begin or resume → step, save → finish, and what becomes of
them when one of these fails. The choice of rows belongs to ``step_batching``, waiting callers and threads to
``diffusion_runner``, the device and loading to ``gpu_diffusion_worker``, the arithmetic to the model. There is no KV
cache, no sampler and no attention metadata. The name follows vLLM's family of model runners; the code is the same on
CPUs.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from omni_jobs.errors import EngineDead, ModelError, OutOfMemory, StageError
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.model import Cost, DiffusionModel, DiffusionRow, ResumableModel, RowOutput
from workers.runners.diffusion.previews import Previews
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_batching import StepBatching
from workers.runners.diffusion.step_budget import StepBudget
from workers.runners.model_failure import model_failure
from workers.runners.runner import Snapshots
from workers.stages.types import OmniModelRunnerOutput, Snapshot, convert_tensors

logger = logging.getLogger(__name__)

_STEPS_AHEAD = 2  # that a GPU may have to do yet when the next one is chosen, so that a row soon leaves or joins


class RowCaller(Protocol):
    """The one who waits for a row's output. The thread that runs the model calls it."""

    @property
    def prompt(self) -> DiffusionPrompt[Any]:
        """The prompt, which the model's ``check`` has accepted."""

    @property
    def cost(self) -> Cost:
        """What ``check`` returned."""

    @property
    def wanted(self) -> bool:
        """Whether anyone still waits for the output; False for good once ``settle`` was called."""

    @property
    def snapshots(self) -> Snapshots | None:
        """The row's snapshots; None: it begins anew, and none are taken."""

    def report(self, done: int, total: int) -> None:
        """Take the row's progress: ``done`` of ``total`` steps. The last one is the model's ``finish``."""

    def show(self, picture: torch.Tensor) -> None:
        """Take a preview, uint8 [h, w, 3] on the CPU; called only if the prompt asks for previews."""

    def settle(self, result: OmniModelRunnerOutput | StageError) -> None:
        """Take the row's output, or the error with which this row failed."""


class GPUDiffusionModelRunner:
    """Takes the steps of all rows of a diffusion model, for ``DiffusionRunner`` and on its thread."""

    def __init__(
        self,
        model: DiffusionModel,
        device: torch.device,
        budget: StepBudget,
        engine: DiffusionEngine | None = None,
    ) -> None:
        """Run ``model``, which stands on ``device``; each step keeps to ``budget``.

        ``engine`` says when previews are shown and snapshots are taken; None: by its defaults. ``on_step``, which may
        be set, is called on the model's thread with the callers of the rows whose steps are taken from now on, and with
        none when no row is left.
        """
        self._engine = engine or DiffusionEngine()
        self.model = model
        self._previews = Previews(model, self._engine.preview_every_steps)
        self._resumable = model if isinstance(model, ResumableModel) else None
        self._device = device
        self._budget = budget
        self._batching = StepBatching(budget)
        self._added: deque[RowCaller] = deque()
        self._rows: list[_Row] = []  # the oldest first
        self._enqueued: deque[torch.cuda.Event] = deque()  # the ends of the last steps on a GPU
        self.on_step: Callable[[Sequence[RowCaller]], None] = lambda callers: None
        self._stepping: list[RowCaller] = []  # those of whom ``on_step`` was told

    def add(self, caller: RowCaller) -> None:
        """Let a row take part from the next step on. For any thread."""
        self._added.append(caller)

    @torch.inference_mode()
    def execute_model(self) -> bool:
        """Take one step of the rows whose turn it is, and finish those that are done; return False if none are left.

        When memory lacks for a step, each of its rows takes it alone, and later steps are smaller. So only a row that
        cannot run alone gets an error: OutOfMemory, or ModelError where the model failed. Raises EngineDead when the
        device has failed; rows that are left are not settled.
        """
        self._rows = [row for row in self._rows if row.caller.wanted]  # the memory of the others is free from here on
        while self._added:
            self._rows.append(_Row(self._added.popleft()))
        rows = self._batching.choose([row for row in self._rows if row.caller.wanted])
        self._tell_step([row.caller for row in rows])
        if not rows:
            self._rows.clear()
            return bool(self._added)
        self._step(rows)
        self._save(rows)
        self._show(rows)
        done = [row for row in rows if row.steps_left == 0 and row.caller.wanted]
        if done:
            self._finish(done)
        return True

    def _tell_step(self, callers: list[RowCaller]) -> None:
        """Call ``on_step`` before a step of other rows than the last one's, and when none are left."""
        if callers != self._stepping:
            self._stepping = callers
            self.on_step(callers)

    def _step(self, rows: Sequence[_Row]) -> None:
        """Take one step of each row; rows that fail together are tried one by one, the smallest first."""
        error = self._try(self._advance, rows)
        if error is None:
            self._budget.count_step()
            return
        fits = self._try_each(self._advance, sorted(rows, key=lambda row: row.cost.units), error)
        if isinstance(error, OutOfMemory) and fits:
            self._budget.shrink(sum(row.cost.units for row in rows))

    def _advance(self, rows: Sequence[_Row]) -> None:
        for row in rows:
            self._begin(row)
        left = {row: row.steps_left for row in rows if row.steps_left}  # a row may begin where all its steps are taken
        if left:
            self.model.step([row.under_way for row in left])
        self._limit_enqueued()
        for row in rows:
            if row in left and row.steps_left != left[row] - 1:
                row.caller.settle(ModelError("the model's step is not one step of the row", field="steps_done"))
            else:
                row.report()

    def _begin(self, row: _Row) -> None:
        """Let the model make its row, unless it has: the snapshot's, or a new one if there is none of use."""
        snapshots = row.caller.snapshots
        if row.under_way is None and snapshots is not None and snapshots.newest is not None:
            try:
                row.begin(self._resume(row, snapshots.newest))
            except BaseException as error:
                failure = _stage_error(error)
                if isinstance(failure, OutOfMemory):
                    raise
                snapshots.refuse(failure)
        if row.under_way is None:
            new: DiffusionRow = self.model.begin(row.caller.prompt)
            _check_steps_done(new, range(1), "steps_done")
            row.begin(new)

    def _resume(self, row: _Row, snapshot: Snapshot) -> DiffusionRow:
        if self._resumable is None:
            raise ModelError("the model cannot be resumed", field="component")
        under_way: DiffusionRow = self._resumable.resume(row.caller.prompt, snapshot.tensors, snapshot.values)
        _check_steps_done(under_way, range(1, row.cost.steps + 1), "values.steps_done")
        return under_way

    def _save(self, rows: Sequence[_Row]) -> None:
        """Take snapshots of the rows for which one is due. An error costs the snapshot alone."""
        if self._resumable is None:
            return
        for row in rows:
            snapshots = row.caller.snapshots
            if snapshots is None or row.under_way is None or not row.is_snapshot_due(self._engine):
                continue
            row.note_snapshot()
            try:
                saved = self._resumable.save(row.under_way)
                snapshots.put(Snapshot(saved.tensors, saved.values, row.under_way.steps_done))
            except BaseException as error:  # noqa: BLE001 — the row itself is well
                snapshots.miss(_stage_error(error))

    def _show(self, rows: Sequence[_Row]) -> None:
        """Show the callers that asked for previews what comes of their rows, until the last step is taken."""
        for row in rows:
            if row.under_way is not None and row.steps_left and row.caller.wanted and row.caller.prompt.previews:
                picture = self._previews.of(row.under_way)
                if picture is not None:
                    row.caller.show(picture)

    def _limit_enqueued(self) -> None:
        """Wait until a GPU has at most ``_STEPS_AHEAD`` steps to do."""
        if self._device.type != "cuda":
            return
        end = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        end.record(torch.cuda.current_stream(self._device))
        self._enqueued.append(end)
        if len(self._enqueued) > _STEPS_AHEAD:
            self._enqueued.popleft().synchronize()

    def _finish(self, rows: Sequence[_Row]) -> None:
        """Settle rows whose steps are all taken, each with its output or with the error that it has even alone."""
        error = self._try(self._settle, rows)
        if error is not None:
            self._try_each(self._settle, [row for row in rows if row.caller.wanted], error)

    def _settle(self, rows: Sequence[_Row]) -> None:
        under_way = [row.under_way for row in rows]
        for number, output in self.model.finish(under_way, lambda number: rows[number].caller.wanted):
            rows[number].settle(output)
        if any(row.caller.wanted for row in rows):
            raise ModelError("the model made no output of a row")

    def _try_each(self, call: _OfRows, rows: Sequence[_Row], error: StageError) -> bool:
        """Make the call, which failed for all rows with ``error``, for each alone, and settle those for which it fails.

        Returns whether it failed for none.
        """
        if len(rows) > 1:
            logger.warning("%d rows failed together, trying each alone: %s", len(rows), error)
        for row in rows:
            row.release()
        failed = False
        for row in rows:
            failure = self._try(call, [row]) if len(rows) > 1 else error
            if failure is not None:
                row.caller.settle(failure)
                failed = True
        return not failed

    def _try(self, call: _OfRows, rows: Sequence[_Row]) -> StageError | None:
        """Make the call, and return the error on which it stopped or None. Raises EngineDead."""
        try:
            call(rows)
            return None
        except BaseException as error:  # noqa: BLE001 — whatever the model's code raises ends its rows alone
            failure = _stage_error(error)
        # Here the exception is gone, whose traceback held the step's tensors.
        if isinstance(failure, OutOfMemory) and self._device.type == "cuda":
            torch.cuda.empty_cache()
        return failure


class _Row:
    """One prompt from its first step to its output. Implements ``SteppingRow``."""

    def __init__(self, caller: RowCaller) -> None:
        self.caller = caller
        self.cost = caller.cost
        self.under_way: DiffusionRow | None = None  # before its first step
        self._saved_at = 0.0  # by the monotonic clock: its last snapshot, or its begin
        self._saved_steps = 0

    @property
    def begun(self) -> bool:
        return self.under_way is not None

    @property
    def steps_left(self) -> int:
        return self.cost.steps - (0 if self.under_way is None else self.under_way.steps_done)

    def begin(self, under_way: DiffusionRow) -> None:
        """Take the model's row, which is new or resumed."""
        self.under_way = under_way
        self.note_snapshot()

    def is_snapshot_due(self, engine: DiffusionEngine) -> bool:
        """Return whether a snapshot is to be taken now: not after the last step."""
        if self.steps_left == 0 or not self.caller.wanted:
            return False
        steps = self.cost.steps - self.steps_left - self._saved_steps
        return engine.is_snapshot_due(time.monotonic() - self._saved_at, steps)

    def note_snapshot(self) -> None:
        """Count time and steps to the next snapshot from here on."""
        self._saved_at = time.monotonic()
        self._saved_steps = self.cost.steps - self.steps_left

    def release(self) -> None:
        """Free its memory if no step is lost by that, so that others may have it until it begins again."""
        if self.under_way is not None and self.under_way.steps_done == 0:
            self.under_way = None

    def report(self) -> None:
        self.caller.report(self.cost.steps - self.steps_left, self.cost.steps + 1)

    def settle(self, output: RowOutput) -> None:
        result = _runner_output(output)
        self.caller.report(self.cost.steps + 1, self.cost.steps + 1)
        self.caller.settle(result)


_OfRows = Callable[[Sequence[_Row]], None]


def _check_steps_done(row: DiffusionRow, due: range, field: str) -> None:
    """Raise ModelError naming ``field`` unless a row that begins here has done a number of steps in ``due``."""
    if type(row.steps_done) is not int or row.steps_done not in due:
        raise ModelError(f"{row.steps_done!r} steps done where {due[0]} to {due[-1]} are due", field=field)


def _runner_output(output: RowOutput) -> OmniModelRunnerOutput:
    tensors = convert_tensors(output.tensors, lambda tensor: tensor.to("cpu"))
    return OmniModelRunnerOutput(multimodal_outputs=tensors, values=output.values)


def _stage_error(error: BaseException) -> StageError:
    """Return the error of the rows that ran. Raises EngineDead when the device failed, on which no row can run."""
    failure = model_failure(error)
    if isinstance(failure, EngineDead):
        raise failure from error
    return failure
