"""The API on a real socket, with everything it needs, and the shape of its errors."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from omni_jobs.api.services import Services
from omni_jobs.settings import Settings
from omni_jobs.stack.plugs import Plugs
from omni_jobs.views import RequestErrorView
from omni_jobs.web.server import BoundedServer

START_S = 30.0
SHIPPED = Path(__file__).parents[2] / "stage_configs"
BEHIND_A_PROXY: Mapping[str, Any] = {"auth": "proxy", "tenant_header": "X-Tenant"}


def server_settings(directory: Path, broker_url: str, **more: Any) -> Settings:
    """The settings with which the tests' servers begin; ``more`` are further ones. Data lie in ``directory``.

    It serves the shipped pipelines. Objects do not wait for the disk, because none of these machines loses its power.
    """
    begin = {"data_dir": directory, "broker_url": broker_url, "stage_configs": SHIPPED, "storage_sync": False}
    return Settings(**{**begin, "min_free_bytes": 0, **more})


@dataclass(frozen=True)
class ApiServer:
    """``services`` are the server's own; ``connections``: those that are open; ``loop``: the server's."""

    host: str
    port: int
    http: httpx2.Client
    services: Services
    connections: Collection[object]
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]  # begin to stop the server, before its context ends

    def wait_for_count(self) -> None:
        """Wait until the count of the backlog that goes on has ended."""
        asyncio.run_coroutine_threadsafe(self.services.intake.backlog.close(), self.loop).result(START_S)


def checked_error(status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """The error of an answer of 400 or more, which has the API's one shape. ``headers`` have their names in lower case.

    Its request id must be one, and what it says of another try must be the same in the body and in the headers.
    """
    error: dict[str, Any] = json.loads(body)["error"]
    assert (
        {"code", "message", "type", "param", "field", "retryable"} <= set(error) <= set(RequestErrorView.model_fields)
    )
    RequestErrorView.model_validate(error, strict=True)
    assert error["code"]
    assert error["message"]
    assert error["param"] == error["field"]
    assert (error["type"] == "server_error") == (status >= 500)
    assert headers["x-should-retry"] == json.dumps(error["retryable"])
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", headers["x-request-id"])
    return error


def parsed_error(answer: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    """The status, the headers and the error of a whole answer, as ``checked_error`` demands it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert headers["content-type"] == "application/json", answer
    assert int(headers["content-length"]) == len(body)
    status = int(first.split()[1])
    return status, headers, checked_error(status, headers, body)


@contextmanager
def serve(
    settings: Settings,
    *,
    gives_up_after_s: float | None = None,
    plugs: Plugs | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[ApiServer]:
    """A server in a thread until the context ends.

    ``gives_up_after_s``: how long it tries a transaction again, for tests of a database that is away. ``plugs``: those
    of an embedded stack. ``host``: the address on which it listens. ``port``: of a server that has ended; 0: any.
    """
    started = threading.Event()
    server = _Server(settings.model_copy(update={"api_host": host, "api_port": port}), started, plugs)
    thread = threading.Thread(target=server.run, name="api")
    thread.start()
    try:
        assert started.wait(START_S), "the API did not start"
        host, port = server.servers[0].sockets[0].getsockname()
        url = f"http://{host}:{port}"
        with closing(httpx2.Client(base_url=url, trust_env=False, timeout=30, verify=False)) as http:
            services, connections = server.app.state.services, server.server_state.connections
            if gives_up_after_s is not None:
                services.db._retry_for_s = gives_up_after_s
            yield ApiServer(host, port, http, services, connections, server.loop, server.stop)
    finally:
        server.stop()
        thread.join(START_S)
        assert not thread.is_alive(), "the API did not stop"


class _Server(BoundedServer):
    def __init__(self, settings: Settings, started: threading.Event, plugs: Plugs | None) -> None:
        super().__init__(settings, plugs=plugs, log_level="warning")
        self._started = started
        self._asked_to_stop = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        if self._started.is_set():
            with suppress(RuntimeError):  # its loop has ended
                self.loop.call_soon_threadsafe(self._asked_to_stop.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self._started.set()

    async def main_loop(self) -> None:
        """Stop when asked to, not with uvicorn's next look a tenth of a second later."""
        looks = asyncio.create_task(super().main_loop())
        await asyncio.wait({looks, asyncio.create_task(self._asked_to_stop.wait())}, return_when="FIRST_COMPLETED")
        if not looks.cancel():
            looks.result()
