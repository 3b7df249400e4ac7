"""A server with low limits, and one whose time limits no test reaches."""

from collections.abc import Iterator

import pytest

from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings.model_copy(
        update={
            "max_head_bytes": 16 << 10,
            "max_headers": 50,
            "max_connections": 20,
            "max_body_bytes": 4 << 20,
            "max_held_body_bytes": 8 << 20,
            "head_limit_s": 1.0,
            "body_limit_s": 3.0,
            "silence_limit_s": 1.0,
        }
    )


@pytest.fixture
def patient(settings: Settings) -> Iterator[ApiServer]:
    """A server whose time limits no test reaches."""
    given = {"head_limit_s": 300.0, "body_limit_s": 300.0, "silence_limit_s": 300.0}
    with serve(settings.model_copy(update=given)) as server:
        yield server
