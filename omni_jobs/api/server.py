"""The HTTP server: uvicorn's, which at its stop first lets go of the requests that wait for a job's end."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

__all__ = ["Server"]


class Server(uvicorn.Server):
    """Serves an application of :func:`omni_jobs.api.app.create_app`."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        """``config``: of the same application."""
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.services.ends.release()
        await super().shutdown(sockets)
