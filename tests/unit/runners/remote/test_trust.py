"""Whose certificates are verified: any server's that is asked by https, however the scheme is written."""

import ssl

import httpx2
import pytest

from omni_jobs.client import Client
from omni_jobs.servers import Server
from tests.remote_stages import args, engine_settings
from workers.runners.remote.remote_runner import RemoteRunner

SCHEMES = [("http", ssl.CERT_NONE), ("https", ssl.CERT_REQUIRED), ("HTTPS", ssl.CERT_REQUIRED)]


def verified_by(http: httpx2.Client | httpx2.AsyncClient) -> ssl.VerifyMode:
    context = http._transport._pool._ssl_context  # type: ignore[union-attr]
    assert isinstance(context, ssl.SSLContext)
    return context.verify_mode


@pytest.mark.parametrize(("scheme", "mode"), SCHEMES)
def test_of_our_api(scheme: str, mode: ssl.VerifyMode) -> None:
    with Client(f"{scheme}://localhost") as client:
        assert verified_by(client._http) is mode


@pytest.mark.parametrize(("scheme", "mode"), SCHEMES)
async def test_of_remote_models(scheme: str, mode: ssl.VerifyMode) -> None:
    runner = RemoteRunner(args(engine_settings("chat"), {"local": Server(url=f"{scheme}://localhost")}))
    await runner.start()
    assert runner._client._http is not None
    assert verified_by(runner._client._http) is mode
    await runner.close()
