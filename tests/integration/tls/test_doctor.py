"""What ``omni-jobs doctor`` says of each connection's TLS."""

from datetime import timedelta
from pathlib import Path

import pytest

from omni_jobs.doctor import Finding, examine
from omni_jobs.settings import Settings
from tests.services.certificates import REFUSED, Authority, presented
from tests.services.tls_terminator import TlsTerminator

PASSWORD = "not-to-be-shown"


@pytest.fixture
def port(valkey_server: str) -> int:
    return int(valkey_server.rpartition(":")[2].partition("/")[0])


def of_broker(options: str, port: int, directory: Path) -> Finding:
    url = f"rediss://:{PASSWORD}@localhost:{port}/0{options}"
    settings = Settings(data_dir=directory, broker_url=url)  # type: ignore[arg-type]
    found = [each for each in examine(settings, ["tls"]) if each.message.startswith("broker")]
    assert PASSWORD not in str(found)
    return found[0]


def test_a_certificate_that_is_valid_for_long_and_one_that_ends_soon(port: int, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for days, state in ((60, "ok"), (3, "warning")):
        certificate = authority.certificate("localhost", expires_in=timedelta(days=days, minutes=10))
        with TlsTerminator(port, certificate) as tls:
            found = of_broker(f"?ssl_ca_certs={authority.file}", tls.port, tmp_path)
        assert (found.state, found.message) == (
            state,
            f"broker: TLS, and its certificate is valid for {days} more days",
        )
        assert bool(found.remedy) is (state == "warning")


@pytest.mark.parametrize("wrong", sorted(REFUSED))
def test_a_certificate_that_is_refused_is_the_services_error(port: int, tmp_path: Path, wrong: str) -> None:
    certificate, trusted = presented(wrong, tmp_path)
    with TlsTerminator(port, certificate) as tls:
        url = f"rediss://:{PASSWORD}@localhost:{tls.port}/0?ssl_ca_certs={trusted}"
        settings = Settings(data_dir=tmp_path, broker_url=url)  # type: ignore[arg-type]
        [found] = examine(settings, ["broker"])
    assert (found.state, REFUSED[wrong] in found.message, PASSWORD in found.message) == ("error", True, False)


def test_connections_that_verify_nothing(tmp_path: Path) -> None:
    assert of_broker("?ssl_cert_reqs=none", 1, tmp_path).state == "warning"
    assert of_broker("?ssl_check_hostname=false", 1, tmp_path).state == "warning"
    for mode, state in (("require", "warning"), ("verify-ca", "warning"), ("prefer", "ok"), ("disable", "ok")):
        url = f"postgresql://omni:{PASSWORD}@localhost:1/omni?sslmode={mode}"
        found = list(examine(Settings(data_dir=tmp_path, database_url=url), ["tls"]))
        assert [each.state for each in found] == ["ok", state, "ok"]
        assert PASSWORD not in str(found)


def test_an_api_certificate_that_ends_soon(tmp_path: Path) -> None:
    made = Authority(tmp_path).certificate("localhost", expires_in=timedelta(days=5, minutes=10))
    settings = Settings(data_dir=tmp_path, tls_certificate=made.file, tls_key=made.key_file)
    found = [each for each in examine(settings, ["tls"]) if each.message.startswith("API")]
    assert [(each.state, each.message) for each in found] == [
        ("warning", "API: TLS, and its certificate is valid for 5 more days")
    ]
