"""The HTTP server: uvicorn's with bounded connections; at its stop it first lets go of who waits for a job's end."""

from __future__ import annotations

import resource
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

from omni_jobs.api.app import create_app
from omni_jobs.api.protocol import ConnectionLimits, bounded_protocol
from omni_jobs.api.services import Services
from omni_jobs.settings import Settings

__all__ = ["Server", "raise_file_limit"]

_GRACE_S = 5


class Server(uvicorn.Server):
    """The API on the address of the settings ``api_host`` and ``api_port``.

    ``services``: open ones, which it closes at its end; None: it opens them. ``options``: further ones of
    ``uvicorn.Config``.
    """

    def __init__(self, settings: Settings, services: Services | None = None, **options: Any) -> None:
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
        self.app.state.services.job_waits.release()
        await super().shutdown(sockets)


def raise_file_limit(settings: Settings) -> None:
    """Let this process open as many files as ``max_connections`` and their requests take, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + 1024
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
