"""What docker-compose.yml runs in its containers, run here without them: health checks, bucket, secrets."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

from omni_jobs.errors import ObjectMissing, StorageError
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore, open_store
from tests.integration.echo_stack import EchoStack
from tests.services.fault_proxy import FaultProxy
from tests.services.seaweedfs import weed_ports, weed_program

ROOT = Path(__file__).parents[2]
START_S = 60.0


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return found


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("host") / "secrets"
    subprocess.run([ROOT / "scripts" / "secrets", directory], check=True, capture_output=True)
    return directory


# The workers' health check.


@pytest.fixture
def stack(sqlite_url: str, valkey_server: str, tmp_path: Path) -> Iterator[EchoStack]:
    stack = EchoStack(tmp_path, sqlite_url, valkey_server)
    try:
        yield stack
    finally:
        stack.close()


def test_a_worker_is_healthy_from_when_it_serves_until_it_ends(
    services: dict[str, dict[str, Any]], stack: EchoStack, tmp_path: Path
) -> None:
    kind, program, *words = services["thinker"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "omni-jobs")
    beats = tmp_path / "beat"
    beats.touch()  # of a worker before
    environment = {"OMNI_JOBS_BEAT_FILE": str(beats), "PATH": os.environ["PATH"]}

    def check(*more: str) -> subprocess.CompletedProcess[str]:
        run = [sys.executable, "-m", "omni_jobs.cli", *words, *more]
        return subprocess.run(run, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)

    stack.variables["OMNI_JOBS_BEAT_FILE"] = str(beats)
    worker = stack.launch("first")
    stack.serving(worker)
    deadline = time.monotonic() + START_S
    while (found := check()).returncode != 0:
        assert time.monotonic() < deadline, found.stdout + found.stderr
    worker.stop()
    os.utime(beats, (time.time() - 61, time.time() - 61))  # nobody touches it any more
    found = check()
    assert found.returncode == 1
    assert "the last beat is 6" in found.stderr
    assert check("--within", "90").returncode == 0
    beats.unlink()
    assert "no beat yet" in check().stderr


# The object store and its bucket.


@pytest.fixture
def object_store(services: dict[str, dict[str, Any]], secrets: Path, tmp_path: Path) -> Iterator[str]:
    """The S3 service with the options of docker-compose.yml, on ports and in a directory of this test's own."""
    s3, master, volume, filer = weed_ports(4)
    options = services["objects"]["command"].replace("/run/secrets", str(secrets)).replace("8333", str(s3)).split()
    changed = {"-dir": str(tmp_path / "data"), "-ip": "127.0.0.1", "-ip.bind": "127.0.0.1"}
    named = [name.partition("=")[0] for name in options]
    given = [
        f"{name}={changed[name]}" if name in changed else option for name, option in zip(named, options, strict=True)
    ]
    assert set(changed) <= set(named)
    (tmp_path / "data").mkdir()
    ports = [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
    ports += [f"-s3.localSocket={tmp_path / 's3.sock'}", f"-filer.localSocket={tmp_path / 'filer.sock'}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    log = tmp_path / "weed.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [weed_program(), *given, *ports],
            cwd=tmp_path,
            env=environment | {"GOMEMLIMIT": "400MiB"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for_health(f"http://127.0.0.1:{s3}/healthz", process, log)
        yield f"http://127.0.0.1:{s3}"
    finally:
        process.kill()  # told to end, it waits for its clients
        process.wait()


def wait_for_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """What the health check of the service asks."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"SeaweedFS does not start: {error}\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.1)


def test_the_bucket_is_made_with_the_credentials_file_alone(
    services: dict[str, dict[str, Any]], object_store: str, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "OMNI_JOBS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(secrets / "bucket_s3_credentials"))
    monkeypatch.setenv("OMNI_JOBS_S3_ENDPOINT_URL", object_store)
    monkeypatch.setenv("OMNI_JOBS_STORAGE_URL", "s3://omni-jobs/prefix")
    program, *arguments = services["bucket"]["command"]
    assert program == "omni-jobs"
    monkeypatch.setenv("OMNI_JOBS_DATA_DIR", "/proc/none")  # the container can write nowhere
    run = [sys.executable, "-m", "omni_jobs.cli", *arguments]
    for _ in range(2):  # each `up` runs it again
        made = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, timeout=120)
        assert made.returncode == 0, made.stderr
    client = boto3.session.Session().client("s3", endpoint_url=object_store, region_name="us-east-1")
    assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == ["omni-jobs"]
    stranger = boto3.session.Session().client(
        "s3", endpoint_url=object_store, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    with pytest.raises(ClientError, match=r"AccessKeyId|SignatureDoesNotMatch|AccessDenied"):
        stranger.list_buckets()
    with FaultProxy(object_store, http=True) as proxy:
        monkeypatch.setenv("OMNI_JOBS_S3_ENDPOINT_URL", proxy.url)
        for method, succeeds in ((b"GET", True), (b"HEAD", False), (b"PUT", False)):
            with proxy.fault(status=403, code="AccessDenied", method=method):  # a key that may list no buckets; no key
                made = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, timeout=120)
            assert (made.returncode == 0) == succeeds, made.stderr
            assert succeeds or "is the bucket omni-jobs yours, and may these credentials write to it?" in made.stderr


# What each identity may do.


def store_of(secrets: Path, name: str, endpoint: str, patch: pytest.MonkeyPatch) -> ObjectStore:
    """The object store as the process sees it that has this file of credentials."""
    for variable in [each for each in os.environ if each.startswith("AWS_")]:
        patch.delenv(variable)
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(secrets / name))
    store = open_store(Settings(storage_url="s3://omni-jobs", s3_endpoint_url=endpoint))
    store._client  # type: ignore[attr-defined]  # noqa: B018 - it reads the file now
    return store


def test_each_identity_of_the_object_store_may_do_what_its_role_does(object_store: str, secrets: Path) -> None:
    """And no more: API and workers list nothing, and none but the service bucket changes the bucket."""
    with pytest.MonkeyPatch.context() as patch:
        store_of(secrets, "bucket_s3_credentials", object_store, patch).prepare()
    for name in ("s3_credentials", "worker_s3_credentials"):
        with pytest.MonkeyPatch.context() as patch:
            store = store_of(secrets, name, object_store, patch)
            store.check()
            store.check_writes()
            ref = store.put("jobs/a/x", [b"payload"])
            assert bytes(store.read(ref, max_bytes=100)) == b"payload"
            assert b"".join(store.open_range(ref, 1, 3)) == b"ay"
            store.delete([ref.key])
            with pytest.raises(StorageError):
                list(store.list())
            with pytest.raises(ObjectMissing):
                store.read(ref, max_bytes=100)
            refused(store, lambda client: client.create_bucket(Bucket="other"))
            refused(store, lambda client: client.delete_bucket(Bucket="omni-jobs"))
            refused(store, lambda client: client.put_object(Bucket="other", Key="x", Body=b""))
            refused(store, lambda client: client.put_bucket_acl(Bucket="omni-jobs", ACL="public-read"))
            kept = store.put("jobs/a/kept", [b"payload"])
    with pytest.MonkeyPatch.context() as patch:
        store = store_of(secrets, "rescuer_s3_credentials", object_store, patch)
        store.check()
        assert [each.key for each in store.list("jobs/")] == [kept.key]
        store.delete([kept.key])
        assert list(store.list("jobs/")) == []
        refused(store, lambda client: client.create_bucket(Bucket="other"))
        refused(store, lambda client: client.delete_bucket(Bucket="omni-jobs"))


def refused(store: ObjectStore, call: Callable[[Any], object]) -> None:
    with pytest.raises(ClientError, match="AccessDenied"):
        call(store._client)  # type: ignore[attr-defined]
