"""What object stores do when they are away, slow, broken or full, and that they are well again after it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from omni_jobs.errors import ObjectCorrupt, ObjectMissing, OmniJobsError, StorageFull, StorageUnavailable
from omni_jobs.settings import Settings
from omni_jobs.storage import LocalObjectStore, ObjectRef, ObjectStore, open_store, payload_key
from omni_jobs.storage.s3 import S3ObjectStore
from tests.services.fault_proxy import Fault, FaultProxy
from tests.services.seaweedfs import SeaweedFS, wait_for_bucket, weed_options, weed_ports, weed_program

MIB = 1 << 20
KEY = payload_key("job-1", "thinker", 1)
CALL_S = 1.5
BOUND_S = 20.0  # of a call with CALL_S; the rest is for busy machines
DATA = os.urandom(2 * MIB)


class TestS3:
    @pytest.fixture
    def prefix(self) -> str:
        return f"faults-{uuid4().hex}"

    @pytest.fixture
    def direct(self, seaweedfs: SeaweedFS, tmp_path: Path, prefix: str) -> ObjectStore:
        """The same objects, past the proxy."""
        return open_store(seaweedfs.settings(tmp_path, prefix))

    @pytest.fixture
    def proxy(self, seaweedfs: SeaweedFS) -> Iterator[FaultProxy]:
        with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
            yield proxy

    @pytest.fixture
    def store(self, seaweedfs: SeaweedFS, proxy: FaultProxy, prefix: str) -> S3ObjectStore:
        return S3ObjectStore(seaweedfs.bucket, prefix=prefix, endpoint_url=proxy.url, region="us-east-1", call_s=CALL_S)

    @pytest.mark.parametrize(
        "fault",
        [
            pytest.param(Fault(refuse=True), id="refused"),
            pytest.param(Fault(hang=True), id="hung"),
            pytest.param(Fault(delay_s=60), id="late"),
            pytest.param(Fault(answer_bytes_per_s=1), id="drip"),
            pytest.param(Fault(request_bytes_per_s=1), id="taken-by-drips"),
            pytest.param(Fault(status=500), id="500"),
            pytest.param(Fault(status=503, code="SlowDown"), id="503"),
            pytest.param(Fault(cut_answer_after=10), id="cut"),
            pytest.param(Fault(cut_answer_after=10, reset=True), id="reset"),
        ],
    )
    def test_every_call_ends_in_time_names_its_key_and_works_again(
        self, store: S3ObjectStore, proxy: FaultProxy, fault: Fault
    ) -> None:
        ref = store.put(KEY, [DATA])
        calls: dict[str, tuple[Callable[[], object], str]] = {
            "put": (lambda: store.put("a/put", [DATA]), "a/put"),
            "read": (lambda: store.read(ref, max_bytes=ref.size), KEY),
            "stream": (lambda: list(store.open_stream(ref)), KEY),
            "range": (lambda: list(store.open_range(ref, MIB, 2 * MIB)), KEY),
            "delete": (lambda: store.delete(["a/delete"]), "a/delete"),
            "list": (lambda: list(store.list("a/")), "a/"),
            "check": (store.check, "omni-jobs"),
        }

        def met(name: str) -> tuple[str, OmniJobsError, float]:
            call, _ = calls[name]
            start = time.monotonic()
            with pytest.raises(StorageUnavailable) as raised:
                call()
            return name, raised.value, time.monotonic() - start

        proxy.set(fault)
        with ThreadPoolExecutor(len(calls)) as pool:
            for name, error, took_s in pool.map(met, calls):
                assert error.key == calls[name][1]
                assert error.retryable
                assert error.retry_class == "storage"
                assert took_s < BOUND_S, name
        proxy.clear()
        for call, _ in calls.values():
            call()
        assert store.read(ref, max_bytes=ref.size) == DATA

    def test_connections_that_break_once_are_tried_again(self, store: S3ObjectStore, proxy: FaultProxy) -> None:
        with proxy.fault(cut_request_after=MIB, times=1):
            ref = store.put(KEY, [DATA[:MIB], DATA[MIB:]])
            assert proxy.struck == 1
        with proxy.fault(cut_answer_after=MIB, times=2):
            assert store.read(ref, max_bytes=ref.size) == DATA
            assert proxy.struck == 2
        with proxy.fault(status=503, code="SlowDown", times=1):
            assert store.read(ref, max_bytes=ref.size) == DATA

    def test_a_range_brings_no_other_bytes_over_the_wire(self, store: S3ObjectStore, proxy: FaultProxy) -> None:
        ref = store.put(KEY, [DATA])
        with proxy.fault(cut_answer_after=8192):  # the answer's head, and the range
            assert b"".join(store.open_range(ref, ref.size - 4000, ref.size - 10)) == DATA[-4000:-10]
            assert b"".join(store.open_range(ref, 1000, 2000)) == DATA[1000:2000]
            assert proxy.struck == 0

    def test_a_range_that_is_cut(self, store: S3ObjectStore, proxy: FaultProxy) -> None:
        ref = store.put(KEY, [DATA])
        with proxy.fault(cut_answer_after=MIB // 2), pytest.raises(StorageUnavailable) as raised:
            list(store.open_range(ref, 10, MIB + 10))
        assert raised.value.key == KEY

    def test_a_put_that_is_cut_leaves_nothing(
        self, store: S3ObjectStore, direct: ObjectStore, proxy: FaultProxy
    ) -> None:
        old = store.put("jobs/job-1/old", [b"old"])
        with proxy.fault(cut_request_after=MIB):
            for key in (KEY, old.key):
                with pytest.raises(StorageUnavailable) as raised:
                    store.put(key, [DATA])
                assert raised.value.key == key
        assert [found.key for found in direct.list()] == [old.key]
        assert direct.read(old, max_bytes=3) == b"old"

    def test_a_put_whose_answer_is_lost_is_whole(
        self, store: S3ObjectStore, direct: ObjectStore, proxy: FaultProxy
    ) -> None:
        with proxy.fault(cut_answer_after=60), pytest.raises(StorageUnavailable):  # past 100 Continue
            store.put(KEY, [DATA])
        assert {found.size for found in direct.list()} <= {len(DATA)}
        assert direct.read(store.put(KEY, [DATA]), max_bytes=len(DATA)) == DATA

    @pytest.mark.parametrize("cut", [24, 40, 80])  # within "100 Continue", and within the head that follows it
    def test_a_head_that_is_cut(self, store: S3ObjectStore, proxy: FaultProxy, cut: int) -> None:
        ref = store.put(KEY, [DATA])
        with proxy.fault(cut_answer_after=cut):
            for call in (lambda: store.put("a/put", [DATA]), lambda: store.read(ref, max_bytes=ref.size)):
                with pytest.raises(StorageUnavailable):
                    call()

    def test_a_listing_is_whole_or_an_error(self, store: S3ObjectStore, proxy: FaultProxy) -> None:
        keys = [f"a/{number}" for number in range(3)]
        for key in keys:
            store.put(key, [b"x"])
        errors = 0
        for cut in range(100, 900, 40):
            with proxy.fault(cut_answer_after=cut):
                try:
                    assert sorted(found.key for found in store.list()) == keys
                except StorageUnavailable:
                    errors += 1
        assert errors > 5

    def test_a_byte_that_changes_on_the_way(self, store: S3ObjectStore, proxy: FaultProxy) -> None:
        ref = store.put(KEY, [DATA])
        with proxy.fault(flip_at=MIB, times=1):
            assert store.read(ref, max_bytes=ref.size) == DATA
            assert proxy.struck == 1
        with proxy.fault(flip_at=MIB):
            with pytest.raises(ObjectCorrupt, match="digest") as raised:
                store.read(ref, max_bytes=ref.size)
            assert raised.value.key == KEY
            assert not raised.value.retryable
            with pytest.raises(ObjectCorrupt):
                list(store.open_stream(ref))

    def test_a_missing_object(self, store: S3ObjectStore) -> None:
        ref = store.put(KEY, [DATA])
        store.delete([KEY])
        with pytest.raises(ObjectMissing) as raised:
            store.read(ref, max_bytes=ref.size)
        assert raised.value.key == KEY
        assert not raised.value.retryable

    @pytest.mark.parametrize(
        ("status", "code"), [(507, "InsufficientStorage"), (403, "QuotaExceeded"), (507, "XMinioStorageFull")]
    )
    def test_no_room_left(self, store: S3ObjectStore, proxy: FaultProxy, status: int, code: str) -> None:
        with proxy.fault(status=status, code=code):
            with pytest.raises(StorageFull, match=code) as raised:
                store.put(KEY, [DATA])
            assert raised.value.key == KEY
            assert raised.value.retryable
        with proxy.fault(status=507), pytest.raises(StorageFull):
            store.check()

    @pytest.mark.parametrize("status", [507, 403, 503])
    def test_a_store_that_can_be_read_alone(self, store: S3ObjectStore, proxy: FaultProxy, status: int) -> None:
        store.check_writes()
        with proxy.fault(status=status, method=b"PUT"):
            store.check()
            with pytest.raises(StorageUnavailable):
                store.check_writes()
        store.check_writes()
        assert [found.key for found in store.list()] == ["write-check"]

    def test_a_slow_reader_is_not_a_slow_server(self, store: S3ObjectStore) -> None:
        stream = store.open_stream(store.put(KEY, [DATA]))
        first = next(stream)
        time.sleep(CALL_S + len(DATA) / 1e6 + 0.5)  # longer than the whole call's time limit
        assert first + b"".join(stream) == DATA

    def test_a_stream_that_drips_breaks_off(self, store: S3ObjectStore, proxy: FaultProxy) -> None:
        ref = store.put(KEY, [DATA])
        start = time.monotonic()
        with proxy.fault(answer_bytes_per_s=1e5), pytest.raises(StorageUnavailable, match="no end within"):
            list(store.open_stream(ref))
        assert time.monotonic() - start < BOUND_S

    def test_a_server_that_is_away_at_the_start(self, seaweedfs: SeaweedFS, proxy: FaultProxy, tmp_path: Path) -> None:
        settings = seaweedfs.settings(tmp_path, "late").model_copy(update={"s3_endpoint_url": proxy.url})
        with proxy.fault(refuse=True):
            store = open_store(settings)
            with pytest.raises(StorageUnavailable):
                store.check()
        store.check()
        assert store.read(store.put(KEY, [b"x"]), max_bytes=1) == b"x"


@pytest.mark.timeout(240)
def test_what_was_put_outlives_a_killed_s3_server(seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    """Its process is killed and started again while four threads write; nothing is synced, the machine stays up."""
    directory = Path(tempfile.mkdtemp(prefix="omni-jobs-weed-"))
    ports = weed_ports(5)
    service = SeaweedFS(f"http://127.0.0.1:{ports[0]}", seaweedfs.bucket, seaweedfs.access_key, seaweedfs.secret_key)
    refs: list[ObjectRef] = []
    failed: list[str] = []
    over = threading.Event()

    def start() -> subprocess.Popen[bytes]:
        with (directory / "weed.log").open("ab") as log:
            process = subprocess.Popen(
                [weed_program(), *weed_options(directory, service.bucket, ports)],
                cwd=directory,
                env=os.environ | service.environment | {"GOMEMLIMIT": "400MiB"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_for_bucket(service, process, directory)
        return process

    def write(number: int) -> None:
        store = S3ObjectStore(
            service.bucket, prefix="p", endpoint_url=service.endpoint_url, region="us-east-1", call_s=CALL_S
        )
        count = 0
        while not over.is_set():
            count += 1
            key = f"jobs/job-{number}/payloads/stage/{count}"
            try:
                refs.append(store.put(key, [f"{key} ".encode() * (1 + count % 3 * 5000)]))
            except StorageUnavailable as error:
                failed.append(error.key or "")
                over.wait(0.05)

    process = start()
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(2):
            before = len(refs)
            _until(lambda before=before: len(refs) > before + 100)  # type: ignore[misc]
            process.kill()
            process.wait()
            down = len(failed)
            _until(lambda down=down: len(failed) > down)  # type: ignore[misc]
            process = start()
        before = len(refs)
        _until(lambda: len(refs) > before + 50)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    try:
        store = open_store(service.settings(tmp_path, "p"))
        for ref in refs:
            assert store.read(ref, max_bytes=MIB).nbytes == ref.size
        put = {ref.key: ref.size for ref in refs}
        for found in store.list():
            if found.key in put:
                assert found.size == put[found.key]
            else:
                assert found.key in failed  # it arrived, its answer did not
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _until(true: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {limit_s:g} s")
        time.sleep(0.02)


class TestFullDisk:
    """A disk without room: refused before it is full, and nothing half-written where it is."""

    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        """A filesystem of 2 MiB. Mounting needs root; who lacks it, CI included, has the other tests of this class."""
        disk = tmp_path / "disk"
        disk.mkdir()
        mount = shutil.which("mount")
        command = [mount or "", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
        if mount is None or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("cannot mount a small filesystem here")
        yield disk
        subprocess.run(["umount", "-l", str(disk)], check=True)

    def test_a_disk_that_fills_up(self, small_disk: Path) -> None:
        store = LocalObjectStore(small_disk / "objects")
        kept = store.put("a/kept", [DATA[:MIB]])
        with pytest.raises(StorageFull, match="no space left") as raised:
            store.put(KEY, [DATA])
        assert raised.value.key == KEY
        assert raised.value.retryable
        assert raised.value.retry_class == "storage"
        assert list((small_disk / "objects/.partial").iterdir()) == []
        assert [found.key for found in store.list()] == ["a/kept"]
        assert store.read(kept, max_bytes=MIB) == DATA[:MIB]
        store.delete(["a/kept"])
        assert store.read(store.put(KEY, [DATA[: MIB + 1]]), max_bytes=2 * MIB) == DATA[: MIB + 1]

    def test_many_writers_find_no_room(self, small_disk: Path) -> None:
        store = LocalObjectStore(small_disk / "objects", min_free_bytes=256 << 10)
        refs: list[ObjectRef] = []
        full: list[str] = []

        def fill(number: int) -> None:
            for count in range(30):
                key = f"a/{number}/{count}"
                try:
                    refs.append(store.put(key, [DATA[: 64 << 10]]))
                except StorageFull as error:
                    full.append(error.key or "")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(fill, range(4)))
        assert len(refs) + len(full) == 120
        assert 10 < len(refs) < 32
        for ref in refs:
            assert store.read(ref, max_bytes=MIB).nbytes == ref.size
        assert {found.key for found in store.list()} == {ref.key for ref in refs}
        found = os.statvfs(small_disk)
        above = found.f_bavail * found.f_frsize - (256 << 10)  # the reserve; writers that race may have taken of it
        (small_disk / "other").write_bytes(bytes(above + 4096 if above >= 0 else 0))
        with pytest.raises(StorageFull) as raised:
            store.check()
        assert raised.value.code == "storage_full"
        store.delete(found.key for found in list(store.list()))
        store.check()
        store.put(KEY, [b"x"])

    def test_the_reserve(self, tmp_path: Path) -> None:
        found = os.statvfs(tmp_path)
        more_than_there_is = found.f_blocks * found.f_frsize + 1
        settings = Settings(data_dir=tmp_path, min_free_bytes=more_than_there_is)
        store = open_store(settings)
        for refused in (lambda: store.put(KEY, [b"x"]), store.check):
            with pytest.raises(StorageFull, match=r"no room: .* MiB free"):
                refused()
        assert list(store.list()) == []
        assert list((tmp_path / "objects/.partial").iterdir()) == []
        rich = open_store(settings.model_copy(update={"min_free_bytes": 1}))
        ref = rich.put(KEY, [b"x"])
        rich.check()
        assert store.read(ref, max_bytes=1) == b"x"
        store.delete([KEY])
        assert list(store.list()) == []

    def test_a_write_that_fails_in_its_middle(self, tmp_path: Path) -> None:
        """By a limit on the size of files, which any user may set, in a process of its own."""
        done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True)
        assert done.stdout.split() == ["storage_unavailable", "a/large", "a/small"], done.stderr
        assert list((tmp_path / "objects/.partial").iterdir()) == []


LIMITED = """
import resource, sys
from pathlib import Path
from omni_jobs.errors import StorageUnavailable
from omni_jobs.storage import LocalObjectStore

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = LocalObjectStore(Path(sys.argv[1]) / "objects")
store.put("a/small", [bytes(1000)])
try:
    store.put("a/large", [bytes(3_000_000)])
except StorageUnavailable as error:
    print(error.code, error.key)
print(*(found.key for found in store.list()))
"""


class TestTheProxy:
    """Without HTTP, as tests of other services use it."""

    @pytest.fixture
    def proxy(self, valkey_url: str) -> Iterator[FaultProxy]:
        with FaultProxy(valkey_url) as proxy:
            yield proxy

    @pytest.fixture
    def client(self, proxy: FaultProxy) -> Iterator[redis.Redis]:
        with redis.Redis(port=proxy.port, socket_timeout=0.5, retry=None) as client:
            yield client

    def test_an_answer_that_is_lost(self, proxy: FaultProxy, client: redis.Redis, valkey_url: str) -> None:
        with proxy.fault(cut_when_sent=b"$3\r\nSET\r\n"), pytest.raises(redis.ConnectionError):
            client.set("key", "value")
        assert client.get("key") == b"value"

    @pytest.mark.parametrize("fault", [Fault(refuse=True), Fault(hang=True), Fault(answer_bytes_per_s=0.1)])
    def test_it_ends(self, proxy: FaultProxy, client: redis.Redis, fault: Fault) -> None:
        client.set("key", "value")
        proxy.set(fault)
        with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
            client.get("key")
        proxy.clear()
        assert client.get("key") == b"value"
