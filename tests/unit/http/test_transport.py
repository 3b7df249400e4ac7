"""omni_jobs.http.transport: names and addresses of this server, however they are written."""

from pathlib import Path

import pytest

from omni_jobs.http.transport import Transport, host_name
from omni_jobs.settings import Settings


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("Jobs.Example.COM.:8000", "jobs.example.com"),
        ("[::1]:8000", "::1"),
        ("[FD00:0:0::7]", "fd00::7"),
        ("fd00:0000::0007", "fd00::7"),
        ("[::ffff:192.0.2.7]:80", "::ffff:c000:207"),
        ("[::bad", "::bad"),
        ("192.0.2.7:8000", "192.0.2.7"),
        ("", ""),
    ],
)
def test_a_host_has_one_name(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize("public", ["http://[fd00::7]:8000", "http://[FD00:0:0::7]:8000"])
def test_a_public_address_counts_as_browsers_write_it(public: str, tmp_path: Path) -> None:
    transport = Transport(Settings(data_dir=tmp_path, public_url=public))
    scope = {"type": "http", "scheme": "http", "headers": [(b"host", b"[fd00::7]:8000")]}
    assert not transport.needs_https(scope)
    assert transport.needs_https(scope | {"headers": [(b"host", b"[fd00::8]:8000")]})
