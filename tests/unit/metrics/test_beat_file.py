"""The beat file: who hangs leaves it to grow old, and who cannot touch it says so once."""

import logging
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_jobs.cli import app
from omni_jobs.metrics.beat_file import BeatFile, seconds_since_beat


def test_a_beat_is_as_old_as_the_last_touch(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    assert seconds_since_beat(path) is None
    beats = BeatFile(path)
    beats.beat()
    os.utime(path, (0, 0))
    assert (seconds_since_beat(path) or 0) > 1e9
    beats.beat()
    assert (seconds_since_beat(path) or 0) < 1e9


def test_the_file_of_a_process_before_is_removed(tmp_path: Path) -> None:
    (tmp_path / "beat").touch()
    BeatFile(tmp_path / "beat")
    assert not (tmp_path / "beat").exists()


def test_a_file_that_cannot_be_touched_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    beats = BeatFile(tmp_path / "none" / "beat")
    beats.beat()
    beats.beat()
    assert [record.getMessage() for record in caplog.records] == [
        f"no health check sees this process: {tmp_path}/none/beat: No such file or directory"
    ]


def test_without_a_file_there_is_nothing_to_keep() -> None:
    beats = BeatFile(None)
    beats.beat()
    assert not beats.is_kept


def test_the_command_names_the_setting_that_it_needs() -> None:
    result = CliRunner(env={"OMNI_JOBS_BEAT_FILE": None}).invoke(app, ["healthy"])
    assert result.exit_code != 0
    assert "OMNI_JOBS_BEAT_FILE" in result.output
