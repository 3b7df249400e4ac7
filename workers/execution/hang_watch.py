"""``HangWatch``: the one rule by which a stage run or an engine hangs, for the runners of all kinds.

A stage run hangs when its end was asked for, by a cancel, its time limit or a stop, and it has not ended within the
stop limit: a runner's ``run`` ends once the engine has dropped its prompt. An engine hangs when it computes for stage
runs and none of them has moved for the stall limit. Either way the worker has to start anew, and only those stage runs
are to blame that the engine computes, as far as the runner can tell (``StageLLM.computing``).
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Hang:
    """Why the engine is given up, and the ids of the stage runs to blame."""

    reason: str
    blamed: frozenset[int]


class HangWatch:
    """Watches the stage runs of one executor, on its event loop. It tells of one hang, and of no more."""

    def __init__(
        self,
        *,
        stop_limit_s: float,
        stall_limit_s: float,
        computing: Callable[[], Collection[int]],
        on_hang: Callable[[Hang], None],
    ) -> None:
        """Watch nothing yet. ``computing`` returns the stage runs that the engine computes now."""
        self._stop_limit_s = stop_limit_s
        self._stall_limit_s = stall_limit_s
        self._computing = computing
        self._on_hang = on_hang
        self._loop = asyncio.get_running_loop()
        self._waits: dict[int, bool] = {}  # stage run → whether it waits for room in its runner
        self._stops: dict[int, asyncio.TimerHandle] = {}  # those whose end was asked for
        self._moved_at = 0.0  # when the engine last got on with one of them
        self._look: asyncio.TimerHandle | None = None
        self._told = False

    def begin(self, stage_run: int) -> None:
        """Watch a stage run."""
        if not self._waits:
            self._moved_at = self._loop.time()
        self._waits[stage_run] = False
        if self._look is None:
            self._look = self._loop.call_later(self._stall_limit_s, self._check_stall)

    def note(self, stage_run: int, *, waits: bool) -> None:
        """Note that a stage run has got on, or that it waits for room in its runner."""
        if stage_run not in self._waits:
            return
        self._waits[stage_run] = waits
        self._moved_at = self._loop.time()

    def expect_end(self, stage_run: int) -> None:
        """From now on the stage run must end within the stop limit."""
        if stage_run not in self._stops:
            self._stops[stage_run] = self._loop.call_later(self._stop_limit_s, self._stop_over, stage_run)

    def end(self, stage_run: int) -> None:
        """Watch a stage run no longer, which is over or records its end."""
        if self._waits.pop(stage_run, None) is not None:
            self._moved_at = self._loop.time()
        if (stop := self._stops.pop(stage_run, None)) is not None:
            stop.cancel()

    def _stop_over(self, stage_run: int) -> None:
        self._tell(
            f"stage run {stage_run} has not stopped within {self._stop_limit_s:g} s, OMNI_JOBS_STOP_LIMIT_S",
            frozenset(self._stops),
        )

    def _check_stall(self) -> None:
        self._look = None
        if not self._waits:
            return
        now = self._loop.time()
        if not (computed := self._computed()):
            self._moved_at = now
        elif now - self._moved_at >= self._stall_limit_s:
            self._tell(
                f"the engine has got on with none of {len(computed)} stage runs for {self._stall_limit_s:g} s, "
                "OMNI_JOBS_ENGINE_STALL_S",
                frozenset(),
            )
            return
        self._look = self._loop.call_at(self._moved_at + self._stall_limit_s, self._check_stall)

    def _computed(self) -> frozenset[int]:
        return frozenset(run for run in self._computing() if self._waits.get(run) is False)

    def _tell(self, reason: str, overdue: frozenset[int]) -> None:
        """Tell of a hang. Of the stage runs that are overdue those are to blame that the engine computes.

        If it computes none of these, they wait behind those that it does compute.
        """
        if not self._told:
            self._told = True
            computed = self._computed()
            self._on_hang(Hang(reason, (overdue & computed) or computed or overdue))
