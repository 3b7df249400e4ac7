"""A file of SQLite that no wait mends: a command says what it is, where, and that it does not pass by itself."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from omni_jobs.cli.exits import Exit
from omni_jobs.database.database import Database
from omni_jobs.errors import DatabaseUnavailable
from tests.without_rights import without_rights

COMMANDS = (("migrate",), ("migrate", "--check"), ("tenants", "list"))


def run(file: Path, *arguments: str) -> tuple[int, str]:
    """Run a command as a user without root's rights, on a database in this file; return its exit code and errors."""
    done = subprocess.run(
        [*without_rights(), sys.executable, "-m", "omni_jobs.cli", *arguments],
        env={**os.environ, "OMNI_JOBS_DATABASE_URL": f"sqlite:///{file}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


def migrated(file: Path) -> Path:
    with closing(Database(f"sqlite:///{file}")) as database:
        database.migrate()
    return file


def garbage(file: Path) -> None:
    file.write_bytes(os.urandom(8192))


def a_text(file: Path) -> None:
    file.write_text("omni-jobs\n")


def damaged(file: Path) -> None:
    """Its head is SQLite's, and all behind it is not."""
    head = migrated(file).read_bytes()[:100]
    file.write_bytes(head + b"\xff" * (file.stat().st_size - len(head)))


def a_directory(file: Path) -> None:
    file.mkdir()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (garbage, "the database's file is not a database of SQLite"),
        (a_text, "the database's file is not a database of SQLite"),
        (damaged, "the database's file is damaged (disk image is malformed)"),
        (a_directory, "the database's file is a directory"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_no_database_does_not_pass(
    tmp_path: Path, spoil: Callable[[Path], None], said: str, command: tuple[str, ...]
) -> None:
    file = tmp_path / "jobs.sqlite"
    spoil(file)
    code, errors = run(file, *command)
    assert (code, said in errors, f"{file}\n" in errors) == (Exit.FAILED, True, True), errors


@pytest.mark.parametrize(
    ("mode", "of_directory", "said"),
    [
        (0o000, 0o700, "this user may not read and write the database's file"),
        (0o400, 0o700, "this user may not read and write the database's file"),
        (0o600, 0o500, "this user may not write into the directory of the database's file"),
        (0o600, 0o000, "this user may not write into the directory of the database's file"),
    ],
)
def test_a_file_that_is_not_this_users_does_not_pass(tmp_path: Path, mode: int, of_directory: int, said: str) -> None:
    directory = tmp_path / "closed"
    directory.mkdir()
    file = migrated(directory / "jobs.sqlite")
    file.chmod(mode)
    directory.chmod(of_directory)
    try:
        code, errors = run(file, "tenants", "create", "a")
    finally:
        directory.chmod(0o700)
    assert (code, said in errors, f"{file}" in errors) == (Exit.FAILED, True, True), errors


def test_what_may_pass_is_still_told_so(tmp_path: Path) -> None:
    """A session that may not write, a disk without room: the file is well, and who meets it tries again."""
    file = migrated(tmp_path / "jobs.sqlite")
    with closing(Database(f"sqlite:///{file}", connections=1)) as database:
        for pragma in ("PRAGMA query_only = ON", "PRAGMA max_page_count = 1"):
            database.read(lambda tx, pragma=pragma: tx.exec_driver_sql(pragma))  # type: ignore[misc]
            with pytest.raises(DatabaseUnavailable) as caught:
                database.run(lambda tx: tx.execute(text("CREATE TABLE more AS SELECT randomblob(1000000) AS much")))
            assert not caught.value.lasts, caught.value
            database.close()


def test_a_server_tries_again_with_a_file_that_was_mended(tmp_path: Path) -> None:
    file = migrated(tmp_path / "jobs.sqlite")
    whole = file.read_bytes()
    with closing(Database(f"sqlite:///{file}")) as database:
        garbage(file)
        for ask in (database.check, database.check_writes):
            with pytest.raises(DatabaseUnavailable, match="not a database of SQLite") as caught:
                ask()
            assert (caught.value.lasts, caught.value.retryable) == (True, True)
        file.write_bytes(whole)
        database.check_writes()
        database.check()
