"""``Server``: uvicorn's HTTP server with bounded connections."""

import resource
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

from omni_jobs.api.app import create_app
from omni_jobs.api.protocol import ConnectionLimits, bounded_protocol
from omni_jobs.api.services import Services
from omni_jobs.settings import Settings

_GRACE_S = 5


class Server(uvicorn.Server):
    """Serves the API on the address of the settings ``api_host`` and ``api_port``."""

    def __init__(self, settings: Settings, services: Services | None = None, **options: Any) -> None:
        """Prepare the server.

        services  open ones, which the server closes at its end; None: it opens its own when it starts
        options   further options of ``uvicorn.Config``
        """
        self.app: FastAPI = create_app(settings, services)
        limits = ConnectionLimits.of(settings)
        super().__init__(
            uvicorn.Config(
                self.app,
                host=settings.api_host,
                port=settings.api_port,
                http=bounded_protocol(limits),
                ws="none",
                backlog=limits.backlog,
                timeout_graceful_shutdown=_GRACE_S,
                server_header=False,
                **options,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the waits for jobs first, because the server's stop waits for their requests."""
        self.app.state.services.job_waits.release()
        await super().shutdown(sockets)


def raise_file_limit(settings: Settings) -> None:
    """Raise this process's limit on open files as far as ``max_connections`` and their requests need, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + 1024
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
