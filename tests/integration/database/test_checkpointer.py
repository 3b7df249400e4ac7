"""What is committed to SQLite comes from its log into its file, and no writer does it."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from omni_jobs.database.checkpointer import Checkpointer
from omni_jobs.database.database import Database


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "checkpointer"]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows_in_the_file(file: Path) -> int:
    """Without what stands in the log only."""
    connection = sqlite3.connect(f"file:{file}?immutable=1", uri=True)
    try:
        return int(connection.execute("SELECT count(*) FROM notes").fetchone()[0])
    except sqlite3.OperationalError:  # there is no such table yet
        return 0
    finally:
        connection.close()


def test_commits_come_into_the_file_by_themselves(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    db = Database(f"sqlite:///{file}")
    before = len(threads())
    db.read(lambda tx: tx.execute(text("SELECT 1")))
    assert len(threads()) == before  # a reader needs none
    db.run(lambda tx: tx.execute(text("CREATE TABLE notes (id INTEGER PRIMARY KEY)")))
    for count in (1, 2, 3):
        db.run(lambda tx: tx.execute(text("INSERT INTO notes DEFAULT VALUES")))
        wait_until(lambda count=count: rows_in_the_file(file) == count)  # type: ignore[misc]
    assert len(threads()) == before + 1
    db.close()
    assert len(threads()) == before


def test_a_writer_copies_nothing_below_the_backstop(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path / 'notes.db'}")
    with db.begin() as tx:
        assert tx.execute(text("PRAGMA wal_autocheckpoint")).scalar_one() == 10_000
    db.close()


def test_a_checkpoint_that_fails_is_not_the_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "notes.db"
    file.write_bytes(b"not a database, and longer than its header would be" * 100)
    checkpointer = Checkpointer(file)
    with caplog.at_level(logging.WARNING):
        for count in (1, 2):
            checkpointer.note_commit()
            wait_until(lambda count=count: len(caplog.records) == count)  # type: ignore[misc]
    assert "file is not a database" in caplog.text
    checkpointer.close()
    checkpointer.note_commit()  # too late: nothing happens


class ClearedLate(threading.Event):
    """Is cleared only when somebody has set it once more: at the worst moment."""

    def __init__(self) -> None:
        super().__init__()
        self.clearing = threading.Event()
        self.set_again = threading.Event()

    def set(self) -> None:
        super().set()
        if self.clearing.is_set():
            self.set_again.set()

    def clear(self) -> None:
        self.clearing.set()
        self.set_again.wait(30)
        super().clear()


def test_a_close_between_the_pause_and_what_follows_is_not_missed(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "notes.db")
    committed = checkpointer._committed = ClearedLate()
    checkpointer.note_commit()
    assert committed.clearing.wait(30)
    closing = threading.Thread(target=checkpointer.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    assert not (tmp_path / "notes.db").exists()  # no checkpoint began
