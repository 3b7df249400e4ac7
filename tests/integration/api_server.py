"""The API on a real socket, with everything it needs."""

import asyncio
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import httpx2

from omni_jobs.api.server import Server
from omni_jobs.api.services import Services
from omni_jobs.settings import Settings

START_S = 30.0


@dataclass(frozen=True)
class ApiServer:
    """``services`` are the server's own; ``connections``: those that are open; ``loop``: the server's."""

    host: str
    port: int
    http: httpx2.Client
    services: Services
    connections: Collection[object]
    loop: asyncio.AbstractEventLoop

    def wait_for_count(self) -> None:
        """Wait until the count of the backlog that goes on has ended."""
        asyncio.run_coroutine_threadsafe(self.services.intake.backlog.close(), self.loop).result(START_S)


@contextmanager
def serve(settings: Settings) -> Iterator[ApiServer]:
    """A server in a thread until the context ends."""
    started = threading.Event()
    server = _Server(settings.model_copy(update={"api_host": "127.0.0.1", "api_port": 0}), started)
    thread = threading.Thread(target=server.run, name="api")
    thread.start()
    try:
        assert started.wait(START_S), "the API did not start"
        host, port = server.servers[0].sockets[0].getsockname()
        with closing(httpx2.Client(base_url=f"http://{host}:{port}", trust_env=False, timeout=30)) as http:
            services, connections = server.app.state.services, server.server_state.connections
            yield ApiServer(host, port, http, services, connections, server.loop)
    finally:
        server.should_exit = True
        thread.join(START_S)
        assert not thread.is_alive(), "the API did not stop"


class _Server(Server):
    def __init__(self, settings: Settings, started: threading.Event) -> None:
        super().__init__(settings, log_level="warning")
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self._started.set()
