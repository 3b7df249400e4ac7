"""``BoundedServer``: uvicorn's HTTP server with bounded connections."""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from omni_jobs.api.services import Services
from omni_jobs.errors import ConfigError, OmniJobsError
from omni_jobs.http.handshake import Tls
from omni_jobs.http.protocol import bounded_protocol
from omni_jobs.http.server_logs import server_config
from omni_jobs.settings import Settings
from omni_jobs.stack.plugs import Plugs
from omni_jobs.web.app import create_app

logger = logging.getLogger("uvicorn.error")

_GRACE_S = 5
_IDLE_S = 65  # longer than clients (5 s) and most proxies (60 s) keep one, or a request meets a closing connection


class BoundedServer(uvicorn.Server):
    """Serves the API on the address of the settings ``api_host`` and ``api_port``, by TLS with ``tls_certificate``."""

    _renewing: asyncio.Task[None] | None = None

    def __init__(
        self, settings: Settings, services: Services | None = None, plugs: Plugs | None = None, **options: Any
    ) -> None:
        """Prepare the server. ``options`` are further options of ``uvicorn.Config``.

        Raises ConfigError for a certificate or a key that cannot be used. The server closes ``services`` when it ends.
        Without them it opens its own when it starts. ``plugs``: of the embedded stack whose API this is.
        """
        self.app: FastAPI = create_app(settings, services, plugs)
        protocol = bounded_protocol(settings, self._count_refusal)
        self._tls = None
        if settings.tls_certificate is not None:
            self._tls = Tls(settings.tls_certificate.expanduser(), _expanded(settings.tls_key))
        elif settings.tls_key is not None:
            raise ConfigError("is of no use without OMNI_JOBS_TLS_CERTIFICATE", field="OMNI_JOBS_TLS_KEY")
        super().__init__(
            uvicorn.Config(
                self.app,
                host=settings.api_host,
                port=settings.api_port,
                http=protocol if self._tls is None else cast("type[asyncio.Protocol]", self._tls.before(protocol)),
                ws="none",
                backlog=protocol.backlog,
                timeout_graceful_shutdown=_GRACE_S,
                timeout_keep_alive=_IDLE_S,
                server_header=False,
                forwarded_allow_ips=list(settings.trusted_proxies),
                log_config=server_config(settings),
                **options,
            )
        )

    def _count_refusal(self, error: OmniJobsError) -> None:
        self.app.state.metrics.answers.labels(error.http_status, error.code).inc()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server as uvicorn does, and look from then on whether its certificate was renewed."""
        await super().startup(sockets)
        if self._tls is not None:
            self._renewing = asyncio.create_task(self._tls.keep_renewed(), name="certificate")
            logger.info("the API speaks TLS, and no plain HTTP")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the server as uvicorn asks. First let go who watches jobs, because it waits for their answers."""
        self.app.state.services.watch.release()
        if self._renewing is not None:
            self._renewing.cancel()
        await super().shutdown(sockets)


def _expanded(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser()
