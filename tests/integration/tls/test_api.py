"""The API's own TLS: clients that trust it and clients that do not, its bounds, and a certificate that is renewed."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from omni_jobs.client import AsyncClient, Client
from omni_jobs.errors import ConfigError, ServerUnavailable
from omni_jobs.http.handshake import Tls
from omni_jobs.settings import Settings
from omni_jobs.web.server import BoundedServer
from tests.integration.api_server import ApiServer, serve
from tests.services.certificates import REFUSED, Authority, Certificate, presented

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True)
class Secured:
    """A server with TLS, whose certificate is for localhost; ``trusted``: the file of its authority."""

    api: ApiServer
    certificate: Certificate
    trusted: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.api.port}"

    def connect(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.trusted)
        return context.wrap_socket(
            socket.create_connection(("127.0.0.1", self.api.port), 30), server_hostname="localhost"
        )


@contextmanager
def secured(settings: Settings, directory: Path, wrong: str | None = None, **more: object) -> Iterator[Secured]:
    certificate, trusted = presented(wrong, directory)
    files = {"tls_certificate": certificate.file, "tls_key": certificate.key_file}
    with serve(settings.model_copy(update={**files, **more})) as api:
        yield Secured(api, certificate, trusted)


@pytest.fixture
def there(sqlite_settings: Settings, tmp_path: Path) -> Iterator[Secured]:
    with secured(sqlite_settings, tmp_path) as found:
        yield found


def answer(connection: ssl.SSLSocket) -> bytes:
    """Return the next answer, its head and its body, which may come in several pieces."""
    connection.settimeout(30)
    with connection.makefile("rb", buffering=0) as file:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = file.read(1)
            assert byte, head
            head += byte
        length = int(re.findall(rb"(?i)\r\ncontent-length: (\d+)", head)[0])
        body = b""
        while len(body) < length:
            body += file.read(length - len(body)) or b""
    return head + body


async def test_both_clients_trust_an_authority_of_ones_own(there: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(there.url, ca_file=there.trusted) as client:
        names = {pipeline.name for pipeline in client.pipelines()}
    assert "echo" in names
    monkeypatch.setenv("OMNI_JOBS_CA_FILE", str(there.trusted))
    async with AsyncClient(there.url) as client:
        assert {pipeline.name for pipeline in await client.pipelines()} == names


@pytest.mark.parametrize("wrong", sorted(REFUSED))
def test_clients_refuse_a_wrong_certificate_at_once(sqlite_settings: Settings, tmp_path: Path, wrong: str) -> None:
    with (
        secured(sqlite_settings, tmp_path, wrong) as there,
        Client(there.url.replace("//", "//user:hidden-word@"), ca_file=there.trusted) as client,
        pytest.raises(ServerUnavailable) as caught,
    ):
        client.pipelines()
    assert f"the certificate of {there.url} is refused: {REFUSED[wrong]}" in str(caught.value)
    assert not caught.value.retryable
    assert "hidden-word" not in str(caught.value)


def test_the_command_line_trusts_it_too(there: Secured) -> None:
    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "omni_jobs.cli", "list", "--json"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
        environment = kept | {"OMNI_JOBS_URL": there.url} | variables
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    well = run(OMNI_JOBS_CA_FILE=str(there.trusted))
    assert well.returncode == 0, well.stderr
    unknown = run()
    assert unknown.returncode != 0
    assert REFUSED["unknown authority"] in unknown.stderr
    assert "OMNI_JOBS_CA_FILE" in unknown.stderr
    gone = run(OMNI_JOBS_CA_FILE="/gone.pem")
    assert (gone.returncode != 0, "OMNI_JOBS_CA_FILE: /gone.pem cannot be read" in gone.stderr) == (True, True)


def test_a_connection_is_kept_and_answers_one_request_after_the_other(there: Secured) -> None:
    with there.connect() as connection:
        for _ in range(3):
            connection.sendall(REQUEST)
            assert answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(REQUEST + REQUEST)  # ahead of its answer
        assert [answer(connection)[:12] for _ in range(2)] == [b"HTTP/1.1 200"] * 2


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(there: Secured) -> None:
    """TLS 1.3 lets a client send at once what it has; both parts reach the server in one piece here."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=there.trusted)
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with closing(socket.create_connection(("127.0.0.1", there.api.port), 30)) as plain:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(65_536))
        tls.write(REQUEST)
        plain.sendall(outgoing.read())  # the client's last message, and the request
        got = b""
        while b"200 OK" not in got:
            incoming.write(plain.recv(65_536))
            try:
                got += tls.read(65_536)
            except ssl.SSLWantReadError:
                continue


def test_refusals_reach_the_client_by_tls(sqlite_settings: Settings, tmp_path: Path) -> None:
    with secured(sqlite_settings, tmp_path, max_head_bytes=1024) as there, there.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 4096 + b"\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 431")


def test_answers_go_by_https_alone(there: Secured) -> None:
    with there.connect() as connection:
        connection.sendall(REQUEST)
        assert b"strict-transport-security" in answer(connection).lower()
    with closing(socket.create_connection(("127.0.0.1", there.api.port), 30)) as plain:
        plain.sendall(REQUEST)
        assert b"HTTP/1.1" not in plain.recv(65_536), "plain HTTP gets an alert of TLS, or nothing"


def test_a_large_body_and_a_large_answer_pass(there: Secured) -> None:
    text = "word " * 200_000
    with Client(there.url, ca_file=there.trusted) as client:
        job = client.submit({"model": "echo", "messages": [{"role": "user", "content": text}]})
        assert client.get(job.id).id == job.id


def test_a_handshake_that_never_ends_is_ended(sqlite_settings: Settings, tmp_path: Path) -> None:
    with secured(sqlite_settings, tmp_path, head_limit_s=0.3) as there:
        for begin in (b"", b"\x16\x03\x01\x02\x00"):  # nothing at all, and the first bytes of a ClientHello
            with closing(socket.create_connection(("127.0.0.1", there.api.port), 30)) as slow:
                slow.sendall(begin)
                slow.settimeout(30)
                with suppress(ConnectionError):
                    assert slow.recv(1) == b""
        deadline = time.monotonic() + 30
        while there.api.connections:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_handshakes_hold_places_and_give_way(sqlite_settings: Settings, tmp_path: Path) -> None:
    """Clients that begin none fill the server, and those that do come in all the same: the oldest are closed."""
    with secured(sqlite_settings, tmp_path, max_connections=4, head_limit_s=60.0) as there:
        idle = [socket.create_connection(("127.0.0.1", there.api.port), 30) for _ in range(60)]
        try:
            with there.connect() as connection:
                connection.sendall(REQUEST)
                assert answer(connection).startswith(b"HTTP/1.1 200")
            closed = 0
            for each in idle:
                each.settimeout(0.05)
                try:
                    closed += each.recv(1) == b""
                except TimeoutError:
                    pass
                except OSError:
                    closed += 1
            assert closed >= 60 - 4 - 32 - 1, "above the limit there are 32 spare places"
        finally:
            for each in idle:
                each.close()


def test_a_server_stops_while_handshakes_go_on(sqlite_settings: Settings, tmp_path: Path) -> None:
    with secured(sqlite_settings, tmp_path, head_limit_s=300.0) as there:
        held = [socket.create_connection(("127.0.0.1", there.api.port), 30) for _ in range(3)]
        with there.connect() as connection:  # once it is answered, those before have come in
            connection.sendall(REQUEST)
            answer(connection)
    for each in held:
        each.close()


def serial(there: Secured) -> object:
    with there.connect() as connection:
        return connection.getpeercert()["serialNumber"]  # type: ignore[index]


def test_a_certificate_that_is_renewed_is_presented_without_a_restart(
    sqlite_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_jobs.http.handshake._LOOK_EVERY_S", 0.05)
    authority = Authority(tmp_path)
    first = authority.certificate("localhost")
    files = {"tls_certificate": first.file, "tls_key": first.key_file}
    with serve(sqlite_settings.model_copy(update=files)) as api:
        there = Secured(api, first, authority.file)
        before = serial(there)
        with there.connect() as open_before:
            (tmp_path / "new").mkdir()
            made = authority.certificate("localhost", file_name="new/server")
            shutil.move(made.key_file, first.key_file)  # the key first: for a moment they do not belong together
            shutil.move(made.file, first.file)
            deadline = time.monotonic() + 30
            while serial(there) == before:
                assert time.monotonic() < deadline
            open_before.sendall(REQUEST)
            assert answer(open_before).startswith(b"HTTP/1.1 200"), "an open connection goes on"
        first.file.write_text("no certificate")
        assert serial(there) != before, "what cannot be used changes nothing"


def test_files_that_cannot_be_used_are_named_at_the_start(sqlite_settings: Settings, tmp_path: Path) -> None:
    certificate, _ = presented(None, tmp_path)
    (tmp_path / "other").mkdir()
    stranger, _ = presented(None, tmp_path / "other")
    locked = tmp_path / "locked.key"
    pass_word = ["-aes256", "-passout", "pass:secret", "-in", str(certificate.key_file), "-out", str(locked)]
    subprocess.run(["openssl", "ec", *pass_word], check=True, capture_output=True)
    gone = tmp_path / "gone.pem"
    cases = {
        (gone, certificate.key_file): "OMNI_JOBS_TLS_CERTIFICATE: .*gone.pem cannot be read",
        (certificate.file, gone): "OMNI_JOBS_TLS_KEY: .*gone.pem cannot be read",
        (certificate.file, stranger.key_file): "OMNI_JOBS_TLS_CERTIFICATE: .*key values mismatch",
        (certificate.key_file, certificate.file): "OMNI_JOBS_TLS_CERTIFICATE: .*no certificate and its key",
        (certificate.file, locked): "OMNI_JOBS_TLS_KEY: has a passphrase",
        (None, certificate.key_file): "OMNI_JOBS_TLS_KEY: is of no use without",
    }
    for (file, key), words in cases.items():
        with pytest.raises(ConfigError, match=words):
            BoundedServer(sqlite_settings.model_copy(update={"tls_certificate": file, "tls_key": key}))


def test_one_file_may_hold_both(tmp_path: Path) -> None:
    certificate, _ = presented(None, tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.file.read_bytes() + certificate.key_file.read_bytes())
    assert not Tls(both, None).renew()
