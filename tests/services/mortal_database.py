"""Databases that a test takes away and brings back.

``mortal_postgres``  a server of PostgreSQL that a test may kill; one a module
``mortal_database``  a migrated database, once on SQLite and once on that server
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from omni_jobs.database import sqlite
from omni_jobs.database.database import Database
from tests.services.postgres import Cluster, create_cluster

START_S = 60.0


@dataclass
class MortalPostgres:
    """A server of PostgreSQL; ``kill`` it and ``start`` it as often as wanted."""

    cluster: Cluster
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server unless it runs, and wait until it answers."""
        if self.process is not None:
            return
        (self.cluster.data / "postmaster.pid").unlink(missing_ok=True)
        with open(self.cluster.data / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                self.cluster.command(),
                user=self.cluster.user,
                extra_groups=None if self.cluster.user is None else [],
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C"},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, "PostgreSQL does not start"
            time.sleep(0.05)

    def kill(self) -> None:
        """End all its processes at once, in the middle of whatever they do (an "immediate shutdown")."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(START_S)
        self.process = None

    def new_database(self) -> str:
        """The URL of a new, migrated database."""
        name = f"test_{uuid4().hex}"
        with psycopg.connect(self.cluster.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = self.cluster.url.rsplit("/", 1)[0] + "/" + name
        with closing(Database(url)) as database:
            database.migrate()
        return url

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.cluster.url):
            return True
        return False


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[MortalPostgres]:
    directory = Path(tempfile.mkdtemp(prefix="omni-jobs-pg-"))
    try:
        server = MortalPostgres(create_cluster(directory))
        server.start()
        yield server
        if server.process is not None:
            server.kill()
    finally:
        shutil.rmtree(directory)


@dataclass(frozen=True)
class MortalDatabase:
    """A database that takes no writes from ``take_away`` until ``bring_back``. ``database`` is a client's."""

    url: str
    database: Database
    take_away: Callable[[], object]
    bring_back: Callable[[], object]


@pytest.fixture(params=["sqlite", "postgresql"])
def mortal_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MortalDatabase]:
    if request.param == "postgresql":
        server: MortalPostgres = request.getfixturevalue("mortal_postgres")
        url = server.new_database()
        with closing(Database(url)) as database:
            yield MortalDatabase(url, database, server.kill, server.start)
        server.start()
        return
    monkeypatch.setattr(sqlite, "_LOCK_S", 0.5)
    url = request.getfixturevalue("sqlite_url")
    file = url.removeprefix("sqlite:///")
    with (
        closing(sqlite3.connect(file, isolation_level=None, timeout=START_S, check_same_thread=False)) as writer,
        closing(Database(url)) as database,
    ):  # of another process, say, that was stopped in the middle of a transaction
        yield MortalDatabase(
            url, database, lambda: writer.execute("BEGIN IMMEDIATE"), lambda: writer.execute("ROLLBACK")
        )
