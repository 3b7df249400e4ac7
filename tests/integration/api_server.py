"""The API on a real socket, with everything it needs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import httpx
import uvicorn
from fastapi import FastAPI

from omni_jobs.api.app import create_app
from omni_jobs.api.server import Server
from omni_jobs.api.services import Services
from omni_jobs.settings import Settings

START_S = 30.0


@dataclass(frozen=True)
class ApiServer:
    """``services`` are the server's own."""

    host: str
    port: int
    http: httpx.Client
    services: Services


@contextmanager
def serve(settings: Settings) -> Iterator[ApiServer]:
    """A server in a thread until the context ends."""
    started = threading.Event()
    app = create_app(settings)
    server = _Server(app, uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"), started)
    thread = threading.Thread(target=server.run, name="api")
    thread.start()
    try:
        assert started.wait(START_S), "the API did not start"
        host, port = server.servers[0].sockets[0].getsockname()
        with closing(httpx.Client(base_url=f"http://{host}:{port}", trust_env=False, timeout=30)) as http:
            yield ApiServer(host, port, http, app.state.services)
    finally:
        server.should_exit = True
        thread.join(START_S)
        assert not thread.is_alive(), "the API did not stop"


class _Server(Server):
    def __init__(self, app: FastAPI, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(app, config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started.set()
