"""A PostgreSQL whose tablespace ``small`` is a disk of its own, which tests fill: a tmpfs that it alone sees."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.services import missing
from tests.services.postgres import Cluster, create_cluster

_SIZE = 64 << 20
_START_S = 60.0


@contextmanager
def postgres_with_small_disk() -> Iterator[str]:
    """Run one, and give the URL of its maintenance database. Skip where mounts are not permitted; in CI, fail."""
    directory = Path(tempfile.mkdtemp(prefix="omni-jobs-small-disk-"))
    try:
        cluster = create_cluster(directory)
        disk = directory / "small"
        disk.mkdir()
        with open(directory / "log", "wb") as log:
            server = subprocess.Popen(_command(cluster, disk), cwd="/", stdout=log, stderr=log)
        try:
            with _connected(cluster, server, directory / "log") as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
            yield cluster.url
        finally:
            server.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
            server.wait(60)
    finally:
        shutil.rmtree(directory)


def _command(cluster: Cluster, disk: Path) -> list[str]:
    """The server in a mount namespace of its own: made by root, or by a user who is root in a namespace of users."""
    if cluster.user is not None:
        user = pwd.getpwnam(cluster.user)
        options, roots = f",uid={user.pw_uid},gid={user.pw_gid}", []
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    else:
        options, roots = "", ["--user", "--map-root-user"]
        as_user = ["unshare", "--user", f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"]
    mount = f'mount -t tmpfs -o size={_SIZE}{options} small {disk} && exec "$@"'
    return ["unshare", *roots, "--mount", "sh", "-c", mount, "sh", *as_user, *cluster.command()]


def _connected(cluster: Cluster, server: subprocess.Popen[bytes], log: Path) -> psycopg.Connection:
    deadline = time.monotonic() + _START_S
    while True:
        if server.poll() is not None or time.monotonic() > deadline:
            missing(f"no PostgreSQL with a mount of its own: {log.read_text(errors='replace')[-500:]}")
        try:
            return psycopg.connect(cluster.url, autocommit=True)
        except psycopg.OperationalError:
            time.sleep(0.05)


def fill(connection: psycopg.Connection) -> None:
    """Fill the disk of a database, to its last page, with the table ``ballast``."""
    connection.execute("CREATE TABLE ballast (filling text) WITH (autovacuum_enabled = false)")
    for rows in (5000, 100, 1):  # a large insert fails while there is room for a smaller one
        try:
            while True:
                connection.execute(f"INSERT INTO ballast SELECT repeat('x', 1900) FROM generate_series(1, {rows})")
        except psycopg.errors.DiskFull:
            pass
