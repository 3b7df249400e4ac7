"""How long the server keeps what clients leave open."""

from pathlib import Path

import httpx2
from openai import DEFAULT_CONNECTION_LIMITS

from omni_jobs.settings import Settings
from omni_jobs.web.server import BoundedServer


def test_an_idle_connection_is_closed_by_the_client(tmp_path: Path) -> None:
    """A client that sends while its server closes does not know whether its job was submitted."""
    kept_s = BoundedServer(Settings(data_dir=tmp_path)).config.timeout_keep_alive
    for limits in (DEFAULT_CONNECTION_LIMITS, httpx2.Limits()):
        assert limits.keepalive_expiry is not None
        assert kept_s >= 2 * limits.keepalive_expiry
