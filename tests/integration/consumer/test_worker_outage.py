"""A real worker whose PostgreSQL goes away for longer than a lease, beside a real rescuer."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from omni_jobs.database.database import Database
from omni_jobs.states import JobState
from tests.integration.echo_stack import EchoStack
from tests.services.postgres import Cluster, create_cluster


class Server:
    """A PostgreSQL that is stopped and started again."""

    def __init__(self, cluster: Cluster) -> None:
        self.url = cluster.url
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self._cluster.data / "postmaster.pid").unlink(missing_ok=True)
        user = self._cluster.user
        groups = None if user is None else []
        with open(self._cluster.data.parent / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                self._cluster.command(), user=user, extra_groups=groups, cwd="/", stdout=log, stderr=log
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: at once, and with all connections
            self._process.wait(60)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=3).close()
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture
def server() -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="omni-jobs-pg-"))
    server = Server(create_cluster(directory))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


def test_an_outage_longer_than_a_lease_loads_no_engine_again(server: Server, valkey_url: str, tmp_path: Path) -> None:
    """One stage run ends while the database is away, one goes on; neither is run twice."""
    database = Database(server.url)
    database.migrate()
    database.close()
    stack = EchoStack(tmp_path, server.url, valkey_url)
    environment = {**os.environ, **stack.variables}
    rescuer = subprocess.Popen([sys.executable, "-m", "omni_jobs.cli", "rescuer"], env=environment)
    try:
        workers = stack.start("first", "second")
        ids = [stack.submit(first={"delay_s": delay_s}) for delay_s in (4, 20)]
        for job_id in ids:
            stack.until(lambda job_id=job_id: stack.jobs.get(job_id).stages[0].progress, 60)  # type: ignore[misc]
        server.stop()
        leases_are_over = time.time() + 2 * stack.settings.lease_s
        stack.until(lambda: time.time() > leases_are_over or None, 60)
        server.start()
        for job_id in ids:

            def ended(job_id: str = job_id) -> bool | None:
                return stack.jobs.get(job_id).status.is_final or None

            stack.until(ended, 60)
            view = stack.jobs.get(job_id)
            assert view.status is JobState.COMPLETED
            assert [(run.attempt, run.errors) for run in view.stages] == [(1, []), (1, [])]
        for worker in workers:
            assert worker.process.poll() is None
            assert worker.log.read_text().count("the slot is taken") == 1
    finally:
        rescuer.kill()
        rescuer.wait()
        stack.close()
