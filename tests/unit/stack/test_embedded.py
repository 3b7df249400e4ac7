"""omni_jobs.stack.embedded: sockets of IPv4 and IPv6, and the port that ``omni-jobs up`` takes."""

import socket
from contextlib import closing

import pytest

from omni_jobs.cli.servers import _usual_port
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import base_url, open_listener


def hosts() -> list[str]:
    """Addresses of this machine of both kinds; containers often have no IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return ["127.0.0.1", "localhost"]
    return ["127.0.0.1", "localhost", "::1", "::"]


@pytest.mark.parametrize("host", hosts())
def test_a_listener_is_reached_by_its_url(host: str) -> None:
    with open_listener(host, 0) as listener:
        address, port = listener.getsockname()[:2]
        assert base_url(address, port) == f"http://{f'[{address}]' if ':' in address else address}:{port}"
        with socket.create_connection((address, port), timeout=10):
            pass


@pytest.mark.parametrize("host", hosts())
def test_the_usual_port_is_taken_where_it_is_free(host: str) -> None:
    with closing(open_listener(host, 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(api_host=host, api_port=port, auth="off")
        assert _usual_port(settings) == 0
    assert _usual_port(settings) == port
