"""Jobs through workers whose every connection is by TLS: broker, Celery's own one among them, PostgreSQL and S3."""

from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from omni_jobs.states import JobState
from tests.integration.echo_stack import EchoStack
from tests.services.certificates import presented
from tests.services.postgres import EmptyDatabases
from tests.services.seaweedfs import SeaweedFS
from tests.services.tls_terminator import TlsTerminator


def test_jobs_run_with_tls_on_every_connection(
    valkey_server: str,
    empty_databases: EmptyDatabases,
    seaweedfs: SeaweedFS,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate, trusted = presented(None, tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
    monkeypatch.setenv("PGSSLROOTCERT", str(trusted))  # libpq's own variable does as well as its option
    database = empty_databases.take()
    with ExitStack() as opened:

        def behind_tls(url: str, **options: bool) -> TlsTerminator:
            port = int(url.rpartition(":")[2].partition("/")[0])
            return opened.enter_context(TlsTerminator(port, certificate, **options))

        broker, sql = behind_tls(valkey_server), behind_tls(database, starts_as_postgresql=True)
        objects = behind_tls(seaweedfs.endpoint_url)
        stack = EchoStack(
            tmp_path,
            f"postgresql://postgres@localhost:{sql.port}/{database.rpartition('/')[2]}?sslmode=verify-full",
            f"rediss://localhost:{broker.port}/0?ssl_ca_certs={trusted}",
            {
                "OMNI_JOBS_STORAGE_URL": f"s3://{seaweedfs.bucket}/{uuid4().hex}",
                "OMNI_JOBS_S3_ENDPOINT_URL": f"https://localhost:{objects.port}",
                "OMNI_JOBS_INLINE_PAYLOAD_BYTES": "0",  # payloads go by S3
                "OMNI_JOBS_POLL_S": "60",  # a doorbell has to tell of each job
            },
        )
        opened.callback(stack.close)
        workers = stack.start("first", "second")
        jobs = [stack.submit() for _ in range(3)]
        done = [stack.ended(job) for job in jobs]
        assert [job.status for job in done] == [JobState.COMPLETED] * 3
        assert [each.refused for each in (broker, sql, objects)] == [0, 0, 0]
        assert all(each.accepted for each in (broker, sql, objects))
        assert [worker.stop() for worker in workers] == [0, 0]
    empty_databases.give_back(database)


def test_a_worker_says_why_it_does_not_trust_the_broker(valkey_server: str, sqlite_url: str, tmp_path: Path) -> None:
    """It works all the same, by polling, and takes the certificate once that is right."""
    certificate, trusted = presented("another host", tmp_path)
    port = int(valkey_server.rpartition(":")[2].partition("/")[0])
    with TlsTerminator(port, certificate) as tls, ExitStack() as opened:
        url = f"rediss://:not-to-be-shown@localhost:{tls.port}/0?ssl_ca_certs={trusted}"
        stack = EchoStack(tmp_path, sqlite_url, url)
        opened.callback(stack.close)
        workers = stack.start("first", "second")
        job = stack.ended(stack.submit(ring=False))
        assert job.status is JobState.COMPLETED
        log = stack.until(lambda: found if "Hostname mismatch" in (found := workers[0].log.read_text()) else None, 30)
        assert f"rediss://localhost:{tls.port}" in log.replace(":**@", "")
        assert "not-to-be-shown" not in log
        assert tls.accepted == 0
