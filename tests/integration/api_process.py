"""``omni-jobs api`` as a process of its own, which a test kills."""

import os
import socket
import subprocess
import sys

import httpx2

from omni_jobs.settings import Settings

PATIENCE_S = 60.0


class ApiProcess:
    """``omni-jobs api`` as a process. Its port stays open while it is dead, as behind systemd's socket."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
        self._environment |= {
            "OMNI_JOBS_DATA_DIR": str(settings.data_dir),
            "OMNI_JOBS_BROKER_URL": settings.broker_url.get_secret_value(),
            "OMNI_JOBS_STAGE_CONFIGS": str(settings.stage_configs),
            "OMNI_JOBS_DATABASE_URL": url,
        }
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "omni_jobs.cli", "api", "--fd", str(self._listener.fileno())],
            env=self._environment,
            pass_fds=[self._listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert httpx2.get(f"{self.url}/healthz", timeout=PATIENCE_S, trust_env=False).status_code == 200

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def close(self) -> None:
        self.kill()
        self._listener.close()
