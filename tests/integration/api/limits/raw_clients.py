"""Clients that speak HTTP byte by byte, and an API that is a process of its own."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from tests.integration.api_server import SHIPPED, ApiServer, parsed_error

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
JSONL = {"Content-Type": "application/jsonl"}
WAIT_S = 30.0
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
DOORS = {
    "single": (b"/v1/jobs", b"application/json"),
    "multipart": (b"/v1/jobs", b"multipart/form-data; boundary=x"),
    "bulk": (b"/v1/jobs/bulk", b"application/jsonl"),
}
LONG_POLL = "GET /v1/jobs/{}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connected(api: ApiServer) -> socket.socket:
    connection = socket.create_connection((api.host, api.port), timeout=WAIT_S)
    connection.settimeout(WAIT_S)
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def asked(api: ApiServer, request: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    with connected(api) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        return parsed_error(rest_of(connection))


def is_served(api: ApiServer) -> bool:
    """Return whether a new client gets its answer."""
    with httpx2.Client(base_url=f"http://{api.host}:{api.port}", trust_env=False, timeout=WAIT_S) as client:
        return client.get("/healthz").status_code == 200 and client.post("/v1/jobs", json=ECHO).status_code == 202


def is_alive(api: ApiServer) -> bool:
    with httpx2.Client(base_url=f"http://{api.host}:{api.port}", trust_env=False, timeout=WAIT_S) as client:
        return client.get("/healthz").status_code == 200


class ApiProcess:
    """``omni-jobs api`` as a process: its port and pid."""

    def __init__(self, directory: Path, broker: str, files: int | None = None, **more: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
        environment |= {
            "OMNI_JOBS_DATA_DIR": str(directory),
            "OMNI_JOBS_BROKER_URL": broker,
            "OMNI_JOBS_STAGE_CONFIGS": str(SHIPPED),
            **more,
        }
        Database(Settings(data_dir=directory).resolved_database_url).migrate()
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        command = [sys.executable, "-m", "omni_jobs.cli", "api", "--fd", str(listener.fileno())]
        if files is not None:
            command = ["prlimit", f"--nofile={files}:{files}", *command]
        with listener, open(directory / "api.log", "wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=(listener.fileno(),), stdout=log, stderr=log
            )

    def __enter__(self) -> tuple[int, int]:
        url = f"http://127.0.0.1:{self._port}/healthz"
        assert httpx2.get(url, timeout=60, trust_env=False).status_code == 200  # waits in the socket's line
        return self._port, self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10
