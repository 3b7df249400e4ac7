"""The progress of a worker's stage runs on its way to the ledger's thread.

NewestReports  hands the newest report of each over, from time to time
WatchedRuns    which of them are watched, and how much of their texts is written in pieces
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from omni_jobs.jobs import ProgressReport, TextPiece


class NewestReports:
    """Keeps the newest report of each stage run, and hands all over every so many seconds. For one event loop."""

    def __init__(self, every_s: float, hand_over: Callable[[dict[int, ProgressReport]], None]) -> None:
        """``hand_over`` gets the reports by stage run."""
        self._every_s = every_s
        self._hand_over = hand_over
        self._newest: dict[int, ProgressReport] = {}
        self._not_before = 0.0

    def put(self, report: ProgressReport) -> None:
        """Keep a report in place of the stage run's last one."""
        if not self._newest:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, self._not_before - loop.time()), self.flush)
        self._newest[report.stage_run_id] = report

    def forget(self, stage_run_id: int) -> None:
        """Drop the stage run's report, if it is not handed over yet."""
        self._newest.pop(stage_run_id, None)

    def flush(self) -> None:
        """Hand over what there is."""
        if self._newest:
            newest, self._newest = self._newest, {}
            self._not_before = asyncio.get_running_loop().time() + self._every_s
            self._hand_over(newest)


class WatchedRuns:
    """Knows the stage runs whose jobs are watched, and makes pieces of the texts that they report. For one thread."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # stage run → since when its job is watched
        self._written: dict[int, tuple[int, int]] = {}  # stage run → its attempt, and the characters that have pieces

    def __contains__(self, stage_run_id: int) -> bool:
        return stage_run_id in self._since

    def add(self, stage_run_id: int, since: float) -> None:
        """Note that the job of a stage run is watched."""
        if self._since.get(stage_run_id) != since:
            self._since[stage_run_id] = since
            self._written.pop(stage_run_id, None)  # the pieces that there were went with an earlier watch

    def set(self, watched: Mapping[int, float]) -> None:
        """Note that these stage runs are watched, and no others."""
        for stage_run_id in self._since.keys() - watched.keys():
            self.forget(stage_run_id)
        for stage_run_id, since in watched.items():
            self.add(stage_run_id, since)

    def forget(self, stage_run_id: int) -> None:
        """Note that a stage run is not watched any more, or has ended."""
        self._since.pop(stage_run_id, None)
        self._written.pop(stage_run_id, None)

    def take_piece(self, report: ProgressReport) -> tuple[ProgressReport, TextPiece | None]:
        """Return a report of a watched stage run without its text, and the piece of that which is not written yet."""
        if report.text is None:
            return report, None
        attempt, written = self._written.get(report.stage_run_id, (report.attempt, 0))
        if attempt != report.attempt:
            written = 0
        chars = max(written, len(report.text))
        self._written[report.stage_run_id] = report.attempt, chars
        piece = TextPiece(report.stage_run_id, report.attempt, written, report.text[written:])
        return replace(report, text=None, chars=chars), piece if piece.text else None
