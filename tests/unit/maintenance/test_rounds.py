"""The loop of the rescuer and the pruner: an outage is logged once, and neither it nor a bug ends the loop."""

import os
from pathlib import Path

import pytest

from omni_jobs.database.database import Database
from omni_jobs.errors import BrokerUnavailable
from omni_jobs.maintenance.rounds import Rounds
from omni_jobs.metrics.beat_file import BeatFile


class Scripted(Rounds):
    """Rounds that raise what a list says, one after the other, and stop after the last."""

    def __init__(self, outcomes: list[Exception | None], beat_file: BeatFile | None = None) -> None:
        super().__init__("scripted", 0.001, beat_file)
        self.outcomes = outcomes

    def _work(self) -> None:
        outcome = self.outcomes.pop(0)
        if not self.outcomes:
            self.stop()
        if outcome is not None:
            raise outcome


def test_an_outage_is_logged_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    away = BrokerUnavailable("away")
    rounds = Scripted([None, away, away, None, None, away, None])
    for _ in range(7):
        rounds.round()
    messages = ["scripted: away", "scripted: all services answer again"]
    assert [record.message for record in caplog.records] == messages * 2


def test_neither_an_outage_nor_a_bug_ends_the_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.sqlite'}")
    database.migrate()
    rounds = Scripted([BrokerUnavailable("away"), RuntimeError("nobody thought of this"), None])
    rounds.run(database)
    database.close()
    assert rounds.outcomes == []
    assert "nobody thought of this" in caplog.text


def test_only_a_round_that_went_well_touches_the_file(tmp_path: Path) -> None:
    file = tmp_path / "beat"
    rounds = Scripted([BrokerUnavailable("away"), None, BrokerUnavailable("away"), None], BeatFile(file))
    rounds.round()
    assert not file.exists()
    rounds.round()
    os.utime(file, (0, 0))
    rounds.round()
    assert file.stat().st_mtime == 0
    rounds.round()
    assert file.stat().st_mtime > 0
