"""The broker by rediss://: a right certificate, wrong ones, and each of the connections that are made to it."""

import logging
from pathlib import Path

import pytest

from omni_jobs.broker.broker import Broker
from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.broker.connection import broker_url
from omni_jobs.errors import BrokerUnavailable, ConfigError
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.settings import Settings
from omni_jobs.tenants.request_rates import RequestRates
from tests.services.certificates import REFUSED, presented
from tests.services.tls_terminator import TlsTerminator

PASSWORD = "not-to-be-shown"
NOBODY = Pipelines({})


@pytest.fixture
def port(valkey_server: str) -> int:
    return int(valkey_server.rpartition(":")[2].partition("/")[0])


def settings_of(tls: TlsTerminator, trusted: Path | None, user: str = "") -> Settings:
    options = "" if trusted is None else f"?ssl_ca_certs={trusted}"
    return Settings(broker_url=f"rediss://{user}localhost:{tls.port}/0{options}")  # type: ignore[arg-type]


def test_doorbells_ring_by_tls_and_celery_takes_them(port: int, tmp_path: Path) -> None:
    certificate, trusted = presented(None, tmp_path)
    with TlsTerminator(port, certificate) as tls:
        settings = settings_of(tls, trusted)
        app = OmniCelery(settings, load_pipelines(settings.stage_configs))
        app.broker.check()
        app.broker.ring(["echo.first"])
        with app.connection_for_read() as connection:
            assert connection.default_channel.basic_get("echo@1.first", no_ack=True) is not None
        app.close()
        app.broker.close()
    assert (tls.accepted > 1, tls.refused) == (True, 0), "one connection is the Broker's, the others Celery's"


@pytest.fixture(params=sorted(REFUSED))
def wrong(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_wrong_certificate_is_refused_and_the_error_says_why(port: int, tmp_path: Path, wrong: str) -> None:
    certificate, trusted = presented(wrong, tmp_path)
    with TlsTerminator(port, certificate) as tls, pytest.raises(BrokerUnavailable) as caught:
        Broker(settings_of(tls, trusted, f"omni:{PASSWORD}@"), NOBODY).check()
    said = str(caught.value)
    assert f"the certificate of rediss://localhost:{tls.port}/0 is refused: {REFUSED[wrong]}" in said
    assert PASSWORD not in said
    assert "OMNI_JOBS_BROKER_URL" in said or wrong == "expired"
    assert (tls.accepted, tls.refused) == (0, 1), "it is not tried again"


def test_celery_refuses_it_too(port: int, tmp_path: Path, wrong: str) -> None:
    certificate, trusted = presented(wrong, tmp_path)
    with TlsTerminator(port, certificate) as tls:
        app = OmniCelery(settings_of(tls, trusted), NOBODY)
        with app.connection_for_read() as connection, pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            connection.connect()
        assert (tls.accepted, tls.refused > 0) == (0, True)


def test_celery_verifies_also_where_the_url_has_no_option(port: int, tmp_path: Path) -> None:
    """kombu verifies nothing then, and would send the broker's password to anybody who answers."""
    certificate, _ = presented(None, tmp_path)
    with TlsTerminator(port, certificate) as tls:
        app = OmniCelery(settings_of(tls, None, f":{PASSWORD}@"), NOBODY)
        with app.connection_for_read() as connection, pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            connection.connect()
        assert (tls.accepted, tls.refused > 0) == (0, True)


@pytest.mark.parametrize("options", ["?ssl_cert_reqs=none", "?ssl_cert_reqs=required&ssl_check_hostname=true", ""])
def test_who_says_how_certificates_are_verified_is_obeyed(options: str) -> None:
    made = broker_url(Settings(broker_url=f"rediss://h:1/0{options}"))  # type: ignore[arg-type]
    assert made == f"rediss://h:1/0{options or '?ssl_cert_reqs=required'}"


async def test_requests_are_counted_by_tls(port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, trusted = presented(None, tmp_path)
    with TlsTerminator(port, certificate) as tls:
        rates = RequestRates(settings_of(tls, trusted))
        await rates.check("acme", 10)
        await rates.close()
    assert (tls.accepted, tls.refused) == (1, 0)
    assert not caplog.records


async def test_rates_say_why_the_broker_is_refused(
    port: int, tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, trusted = presented(wrong, tmp_path)
    caplog.set_level(logging.WARNING, "omni_jobs")
    with TlsTerminator(port, certificate) as tls:
        rates = RequestRates(settings_of(tls, trusted, f":{PASSWORD}@"))
        await rates.check("acme", 10)
        await rates.close()
    assert tls.accepted == 0
    assert REFUSED[wrong] in caplog.text
    assert PASSWORD not in caplog.text


def test_a_certificate_that_was_renewed_is_found_without_a_restart(port: int, tmp_path: Path) -> None:
    expired, trusted = presented("expired", tmp_path)
    with TlsTerminator(port, expired) as tls:
        broker = Broker(settings_of(tls, trusted), NOBODY)
        with pytest.raises(BrokerUnavailable, match="it has expired"):
            broker.check()
        (tmp_path / "new").mkdir()
        renewed, trusted_now = presented(None, tmp_path / "new")
        trusted.write_bytes(trusted_now.read_bytes())
        tls.present(renewed)
        broker.check()
        broker.close()


@pytest.mark.parametrize("name", ["ssl_ca_certs", "ssl_certfile"])
def test_a_file_that_is_not_there_is_named_at_the_start(tmp_path: Path, name: str) -> None:
    settings = Settings(broker_url=f"rediss://:{PASSWORD}@h:1/0?{name}={tmp_path / 'gone.pem'}")  # type: ignore[arg-type]
    for start in (lambda: OmniCelery(settings, NOBODY), lambda: RequestRates(settings), Broker(settings, NOBODY).check):
        with pytest.raises(ConfigError) as caught:
            start()
        assert str(caught.value) == (
            f"OMNI_JOBS_BROKER_URL, {name}: {tmp_path / 'gone.pem'} cannot be read: No such file or directory"
        )
    (tmp_path / "gone.pem").write_text("no certificate")
    if name == "ssl_ca_certs":
        with pytest.raises(ConfigError, match="holds no certificates in PEM"):
            OmniCelery(settings, NOBODY)
