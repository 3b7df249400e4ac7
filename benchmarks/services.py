"""The databases of the benchmarks: SQLite, or a PostgreSQL from its wheel with its usual settings."""

import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.services.postgres import create_cluster

__all__ = ["DATABASES", "database"]

DATABASES = ("sqlite", "postgresql")


@contextmanager
def database(kind: str) -> Iterator[str | None]:
    """The URL of an empty database; None: SQLite in the stack's own directory."""
    if kind == "sqlite":
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="omni-jobs-pg-", ignore_cleanup_errors=True) as name:
        cluster = create_cluster(Path(name))
        where = ["-h", "127.0.0.1", "-p", str(cluster.port), "-k", ""]
        command = [str(cluster.programs / "postgres"), "-D", str(cluster.data), *where]
        with open(Path(name) / "server.log", "wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, user=cluster.user)
            try:
                _wait_until_it_answers(cluster.url)
                yield cluster.url
            finally:
                server.send_signal(signal.SIGINT)  # SIGTERM would wait for every connection to be closed
                server.wait(30)


def _wait_until_it_answers(url: str) -> None:
    import time

    for _ in range(300):
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("PostgreSQL does not start")
