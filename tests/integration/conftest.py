"""An API server's settings, which tests change by a fixture ``settings`` of their own, and the server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve, server_settings


@pytest.fixture
def settings(database_url: str, valkey_url: str, tmp_path: Path) -> Settings:
    """Of a server with an empty database, once on SQLite and once on PostgreSQL."""
    return server_settings(tmp_path, valkey_url, database_url=database_url)


@pytest.fixture
def sqlite_settings(sqlite_url: str, valkey_server: str, tmp_path: Path) -> Settings:
    """Of a server with an empty SQLite database."""
    return server_settings(tmp_path, valkey_server, database_url=sqlite_url)


@pytest.fixture
def api(settings: Settings) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server
