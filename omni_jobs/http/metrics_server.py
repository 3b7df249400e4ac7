"""``MetricsServer``: ``/metrics`` of a process on a port of its own, by a thread of its own."""

import asyncio
import logging
import socket
import threading
from typing import Final

import uvicorn
from fastapi import Response
from starlette.types import Receive, Scope, Send

from omni_jobs.http.protocol import bounded_protocol
from omni_jobs.metrics.process_metrics import CONTENT_TYPE, ProcessMetrics
from omni_jobs.settings import Settings

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 16
_TRY_EVERY_S = 10.0
_CLOSE_S = 2.0


class MetricsServer:
    """Serves ``/metrics`` at ``metrics_host`` and ``metrics_port`` to whoever can connect; nothing without a port.

    While another process has the port it tries again: a worker whose predecessor still lives must work meanwhile.
    Connections, heads and times are bounded as an API server's are.
    """

    def __init__(self, metrics: ProcessMetrics, settings: Settings) -> None:
        """Prepare it; ``start`` opens the port."""
        self._metrics = metrics
        self._settings = settings
        self.port: int | None = None  # once it is open
        self._stopped = threading.Event()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Start the thread, if the settings name a port."""
        if self._settings.metrics_port is not None:
            self._thread.start()

    def close(self) -> None:
        """Close the port and end the thread, in some seconds at the longest."""
        self._stopped.set()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        listener = self._listen()
        if listener is None:
            return
        with listener:
            protocol = bounded_protocol(self._settings.model_copy(update={"max_connections": MOST_CONNECTIONS}))
            config = uvicorn.Config(
                self._answer,
                http=protocol,
                ws="none",
                interface="asgi3",
                lifespan="off",
                backlog=protocol.backlog,
                server_header=False,
                proxy_headers=False,
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=1,
            )
            self._server = uvicorn.Server(config)
            self._server.should_exit = self._stopped.is_set()
            try:
                asyncio.run(self._server.serve([listener]))
            except Exception:  # nobody sees the metrics any more, and the process goes on
                logger.exception("the server of the metrics ended")

    def _listen(self) -> socket.socket | None:
        """Return the socket, once the port is free; None if this is closed before."""
        host, port = self._settings.metrics_host, self._settings.metrics_port or 0
        is_logged = False
        while not self._stopped.is_set():
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                listener = socket.create_server((host, port), family=family)
            except OSError as error:
                if not is_logged:
                    logger.error("nobody sees the metrics: %s port %d: %s", host, port, error.strerror or error)
                is_logged = True
                self._stopped.wait(_TRY_EVERY_S)
            else:
                self.port = listener.getsockname()[1]
                logger.info("metrics: http://%s:%d/metrics", host, self.port)
                return listener
        return None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] != "/metrics":
            answer = Response("see /metrics\n", 404, media_type="text/plain")
        elif scope["method"] not in ("GET", "HEAD"):
            answer = Response("GET it\n", 405, {"Allow": "GET, HEAD"}, media_type="text/plain")
        else:
            answer = Response(self._metrics.text(), media_type=CONTENT_TYPE)
        await answer(scope, receive, send)
