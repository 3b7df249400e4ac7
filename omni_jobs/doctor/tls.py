"""TLS of each connection: whether it is asked for, whether the certificate is verified, and how long that is valid."""

import os
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from sqlalchemy import make_url

from omni_jobs.database.postgresql import SSL_REQUEST
from omni_jobs.doctor.finding import Finding
from omni_jobs.http.handshake import Tls
from omni_jobs.settings import Settings
from omni_jobs.tls.certificates import handshake

_SOON_S: Final = 14 * 86_400


@dataclass(frozen=True)
class _Connection:
    """A service, and how this host is to connect to it. ``unverified``: what to write, because it does not verify."""

    name: str
    host: str
    port: int
    ca_file: str | None = None
    preface: bytes = b""
    unverified: str | None = None


def tls(settings: Settings) -> Iterator[Finding]:
    """Look at each connection's TLS. Of a service that refuses or is away the service's own examination tells."""
    found = [_broker(settings), _database(settings), _storage(settings)]
    for name, connection in zip(("broker", "database", "storage"), found, strict=True):
        if connection is None:
            yield Finding(about="tls", state="ok", message=f"{name}: no TLS is asked for")
        elif connection.unverified is not None:
            message = f"{name}: TLS without a certificate that is verified, so whoever answers gets the password"
            yield Finding(about="tls", state="warning", message=message, remedy=connection.unverified)
        else:
            yield from _verified(connection)
    if settings.tls_certificate is not None:
        yield from _own(settings.tls_certificate.expanduser(), settings.tls_key)


def _verified(connection: _Connection) -> Iterator[Finding]:
    try:
        certificate = handshake(
            connection.host, connection.port, ca_file=connection.ca_file, preface=connection.preface
        )
        ends = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    except (OSError, KeyError, ValueError):
        return
    yield _valid_until(connection.name, ends)


def _own(certificate: Path, key: Path | None) -> Iterator[Finding]:
    """Look at the API's own certificate, by a handshake within this process. Raises ConfigError and OSError."""
    server = Tls(certificate, None if key is None else key.expanduser()).context
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it trusts the certificate itself, whoever has signed it
    client.load_verify_locations(cafile=certificate)
    one_way, other_way = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(one_way, other_way, server_side=True)
    here = client.wrap_bio(other_way, one_way)
    for side in (here, there, here):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    yield _valid_until("API", ssl.cert_time_to_seconds(str((here.getpeercert() or {})["notAfter"])))


def _valid_until(name: str, ends: float) -> Finding:
    left_s = ends - time.time()
    message = f"{name}: TLS, and its certificate is valid for {left_s / 86_400:.0f} more days"
    is_late = left_s < _SOON_S
    return Finding(
        about="tls",
        state="warning" if is_late else "ok",
        message=message,
        remedy="renew it at the server: docs/operations/tls.md" if is_late else None,
        figures={"left_s": round(left_s)},
    )


def _broker(settings: Settings) -> _Connection | None:
    url = urlsplit(settings.broker_url.get_secret_value())
    if url.scheme != "rediss":
        return None
    options = {name: values[-1] for name, values in parse_qs(url.query).items()}
    checks_host = options.get("ssl_check_hostname", "true").lower() not in ("false", "0", "f", "n", "no")
    verifies = options.get("ssl_cert_reqs", "required") != "none" and checks_host
    remedy = None if verifies else "leave ssl_cert_reqs and ssl_check_hostname out of OMNI_JOBS_BROKER_URL"
    return _Connection(
        "broker", url.hostname or "localhost", url.port or 6379, options.get("ssl_ca_certs"), unverified=remedy
    )


def _database(settings: Settings) -> _Connection | None:
    url = make_url(settings.resolved_database_url)
    options = {name: value for name, value in url.query.items() if isinstance(value, str)}
    mode = options.get("sslmode") or os.environ.get("PGSSLMODE", "prefer")
    is_of_one_host = url.host is not None and not url.host.startswith("/") and "," not in url.host
    if url.get_backend_name() == "sqlite" or not is_of_one_host or mode in ("disable", "allow", "prefer"):
        return None
    trusted = options.get("sslrootcert") or os.environ.get("PGSSLROOTCERT") or str(_ROOT)
    verifies = mode == "verify-full" or trusted == "system"
    remedy = None if verifies else "write sslmode=verify-full into OMNI_JOBS_DATABASE_URL"
    return _Connection(
        "database",
        url.host or "",
        url.port or 5432,
        None if trusted == "system" else trusted,
        SSL_REQUEST,
        remedy,
    )


def _storage(settings: Settings) -> _Connection | None:
    url = urlsplit(settings.s3_endpoint_url or "")
    if not settings.resolved_storage_url.startswith("s3:") or url.scheme != "https":
        return None
    return _Connection("storage", url.hostname or "", url.port or 443, os.environ.get("AWS_CA_BUNDLE"))


_ROOT: Final = Path("~/.postgresql/root.crt").expanduser()
