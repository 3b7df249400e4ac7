"""PostgreSQL with sslmode=verify-full: behind an end of TLS of the tests, and Debian's server, which speaks TLS itself.

The server of the wheel has no TLS.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from omni_jobs.backup import postgresql_dump
from omni_jobs.database.database import Database
from omni_jobs.errors import DatabaseUnavailable
from tests.services.certificates import REFUSED, presented
from tests.services.postgres import debian_cluster, running_cluster
from tests.services.tls_terminator import TlsTerminator

PASSWORD = "not-to-be-shown"


@pytest.fixture
def postgres_port(postgres_url: str) -> int:
    return int(postgres_url.rpartition(":")[2].partition("/")[0])


def url_of(port: int, trusted: Path | str | None, name: str = "postgres") -> str:
    root = "" if trusted is None else f"&sslrootcert={trusted}"
    return f"postgresql://postgres:{PASSWORD}@localhost:{port}/{name}?sslmode=verify-full{root}"


def is_encrypted(url: str) -> bool:
    with closing(Database(url)) as database:
        return bool(
            database.read(
                lambda tx: tx.execute(text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")).scalar_one()
            )
        )


def test_a_right_certificate_lets_in(postgres_port: int, tmp_path: Path) -> None:
    certificate, trusted = presented(None, tmp_path)
    with TlsTerminator(postgres_port, certificate, starts_as_postgresql=True) as tls:
        with closing(Database(url_of(tls.port, trusted))) as database:
            assert database.revision() is None
        assert (tls.accepted, tls.refused) == (1, 0)


@pytest.mark.parametrize("wrong", sorted(REFUSED))
def test_a_wrong_certificate_is_refused_and_the_error_says_why(
    postgres_port: int, tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, trusted = presented(wrong, tmp_path)
    with (
        TlsTerminator(postgres_port, certificate, starts_as_postgresql=True) as tls,
        closing(Database(url_of(tls.port, trusted), retry_for_s=1e9)) as database,  # which would be tried for ever
    ):
        for call in (database.revision, database.check, database.check_writes, database.migrate):
            with pytest.raises(DatabaseUnavailable) as caught:
                call()
            said = str(caught.value)
            place = f"postgresql://localhost:{tls.port}/postgres"
            assert f"the certificate of {place} is refused: {REFUSED[wrong]}" in said
            assert "OMNI_JOBS_DATABASE_URL" in said or wrong == "expired"
            assert PASSWORD not in said
    assert PASSWORD not in caplog.text


def test_a_server_without_tls_is_told_from_one_that_is_away(postgres_port: int, tmp_path: Path) -> None:
    _, trusted = presented(None, tmp_path)
    url = url_of(postgres_port, trusted)
    with closing(Database(url, retry_for_s=1e9)) as database, pytest.raises(DatabaseUnavailable) as caught:
        database.revision()
    assert f"postgresql://localhost:{postgres_port}/postgres does not speak TLS" in str(caught.value)


def test_a_file_of_authorities_that_is_not_there_is_named(postgres_port: int, tmp_path: Path) -> None:
    certificate, _ = presented(None, tmp_path)
    gone = tmp_path / "gone.pem"
    with (
        TlsTerminator(postgres_port, certificate, starts_as_postgresql=True) as tls,
        closing(Database(url_of(tls.port, gone), retry_for_s=1e9)) as database,
        pytest.raises(DatabaseUnavailable) as caught,
    ):
        database.revision()
    words = f'root certificate file "{gone}" does not exist; name another by sslrootcert in OMNI_JOBS_DATABASE_URL'
    assert words in str(caught.value)


@pytest.fixture(scope="module")
def debian_url() -> Iterator[str]:
    """Of Debian's server with TLS, which takes nobody without it; the file of its authority stands in the URL."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="omni-jobs-pg-"))
        stack.callback(shutil.rmtree, directory)
        cluster = debian_cluster(directory)
        certificate, trusted = presented(None, directory)
        trusted.chmod(0o644)
        if cluster.user is not None:
            for file in (certificate.file, certificate.key_file):
                shutil.chown(file, cluster.user)
        (cluster.data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n")
        more = f"-c ssl=on -c ssl_cert_file={certificate.file} -c ssl_key_file={certificate.key_file}"
        stack.enter_context(running_cluster(cluster, more))
        yield url_of(cluster.port, trusted)


def test_debians_server_with_its_own_tls(debian_url: str) -> None:
    assert is_encrypted(debian_url)
    with closing(Database(debian_url)) as database:
        database.migrate()
        database.check()
        database.check_writes()
    without = debian_url.partition("?")[0] + "?sslmode=disable"
    with closing(Database(without)) as plain, pytest.raises(DatabaseUnavailable, match="no encryption"):
        plain.check()


@contextmanager
def other_authority() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield presented("unknown authority", Path(directory))[1]


def test_debians_server_is_refused_by_who_trusts_another_authority(debian_url: str) -> None:
    with other_authority() as stranger:
        url = f"{debian_url.rpartition('=')[0]}={stranger}"
        with closing(Database(url)) as database, pytest.raises(DatabaseUnavailable) as caught:
            database.check()
    assert REFUSED["unknown authority"] in str(caught.value)


def test_a_dump_is_by_tls_too(debian_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pg_dump gets the same options of TLS, so it comes in where only TLS does, and refuses who is not known."""
    programs = Path(next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin")))))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    with closing(Database(debian_url)) as database:
        url = database._engine.url
        with database.begin() as tx:
            postgresql_dump.dump(tx, url, tmp_path / "dump", lambda *_: None, lambda: None)
    assert (tmp_path / "dump").stat().st_size > 0
    with other_authority() as stranger, pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        postgresql_dump.load(tmp_path / "dump", url.update_query_dict({"sslrootcert": str(stranger)}), lambda *_: None)
