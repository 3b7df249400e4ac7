"""The contract of object stores, on a local directory and on S3 (SeaweedFS)."""

import errno
import io
import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import httpx2
import pytest
import xxhash

from omni_jobs.errors import (
    ConfigError,
    ObjectCorrupt,
    ObjectMissing,
    PayloadTooLarge,
    StorageError,
    StorageUnavailable,
)
from omni_jobs.settings import Settings
from omni_jobs.storage import (
    LocalObjectStore,
    ObjectRef,
    ObjectStore,
    artifact_key,
    input_key,
    job_prefix,
    open_store,
    payload_key,
)
from omni_jobs.storage.keys import MAX_KEY_LENGTH
from tests.services.fault_proxy import FaultProxy
from tests.services.seaweedfs import SeaweedFS

KEY = payload_key("job-1", "thinker", 1)
MIB = 1 << 20


def ref_of(key: str, data: bytes) -> ObjectRef:
    return ObjectRef(key=key, size=len(data), digest=f"xxh3:{xxhash.xxh3_128(data).hexdigest()}")


def damaged(store: ObjectStore, ref: ObjectRef, data: bytes) -> ObjectRef:
    """What a reader meets whose object became other bytes: put behind the store's back would be the same."""
    store.put(ref.key, [data])
    return ref


class TestContract:
    def test_round_trip(self, object_store: ObjectStore) -> None:
        parts = [b"header", memoryview(b"\x00" * 1000), b"", bytearray(b"tail")]
        data = b"".join(parts)
        ref = object_store.put(KEY, parts)
        assert ref == ref_of(KEY, data)
        read = object_store.read(ref, max_bytes=len(data))
        assert read.readonly
        assert read == data
        assert b"".join(object_store.open_stream(ref)) == data

    def test_an_empty_object(self, object_store: ObjectStore) -> None:
        ref = object_store.put(KEY, [])
        assert ref.size == 0
        assert bytes(object_store.read(ref, max_bytes=0)) == b""
        assert list(object_store.open_stream(ref)) == []

    def test_many_and_large_buffers(self, object_store: ObjectStore) -> None:
        parts = [os.urandom(1 + 7 * n) for n in range(1500)] + [os.urandom(9 * MIB + 5)]
        ref = object_store.put(KEY, parts)
        data = b"".join(parts)
        assert ref == ref_of(KEY, data)
        assert object_store.read(ref, max_bytes=len(data)) == data
        assert b"".join(object_store.open_stream(ref)) == data

    def test_what_was_read_outlives_a_new_put_and_a_delete(self, object_store: ObjectStore) -> None:
        ref = object_store.put(KEY, [b"a" * 100_000])
        read = object_store.read(ref, max_bytes=MIB)
        object_store.put(KEY, [b"b" * 100_000])
        object_store.delete([KEY])
        assert read == b"a" * 100_000

    def test_missing(self, object_store: ObjectStore) -> None:
        ref = ref_of(KEY, b"never stored")
        with pytest.raises(ObjectMissing) as raised:
            object_store.read(ref, max_bytes=MIB)
        assert raised.value.key == KEY
        assert not raised.value.retryable
        with pytest.raises(ObjectMissing):
            object_store.open_stream(ref)
        with pytest.raises(ObjectMissing):
            object_store.open_range(ref, 3, 5)

    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 1), (5, 2 * MIB + 9), (3 * MIB - 1, 3 * MIB), (0, 3 * MIB), (MIB, 2 * MIB)]
    )
    def test_a_range_has_its_bytes_and_no_others(self, object_store: ObjectStore, start: int, stop: int) -> None:
        data = os.urandom(3 * MIB)
        pieces = list(object_store.open_range(object_store.put(KEY, [data]), start, stop))
        assert b"".join(pieces) == data[start:stop]
        assert max(map(len, pieces)) <= MIB

    @pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 3), (4, 3), (0, 6), (5, 6), (0, 0)])
    def test_what_is_no_range_is_refused(self, object_store: ObjectStore, start: int, stop: int) -> None:
        ref = object_store.put(KEY, [b"12345"])
        with pytest.raises(StorageError, match="no range of 5 bytes") as raised:
            object_store.open_range(ref, start, stop)
        assert (raised.value.code, raised.value.retryable) == ("storage_error", False)

    @pytest.mark.parametrize("other", [b"0123456789" * 999, b"0123456789" * 1001, b""])
    def test_a_range_of_an_object_of_another_size(self, object_store: ObjectStore, other: bytes) -> None:
        ref = object_store.put(KEY, [b"0123456789" * 1000])
        damaged(object_store, ref, other)
        for start, stop in ((0, 1), (5000, 10_000), (9_995, 9_999)):
            with pytest.raises(ObjectCorrupt) as raised:
                object_store.open_range(ref, start, stop)
            assert raised.value.key == KEY

    def test_a_directory_is_not_an_object(self, object_store: ObjectStore) -> None:
        object_store.put("jobs/job-1/inputs/0", [b"x"])
        with pytest.raises(ObjectMissing):
            object_store.read(ref_of("jobs/job-1/inputs", b"x"), max_bytes=MIB)
        with pytest.raises(ObjectMissing):
            object_store.read(ref_of("jobs/job-1/inputs/0/more", b"x"), max_bytes=MIB)

    def test_truncated(self, object_store: ObjectStore) -> None:
        ref = object_store.put(KEY, [b"0123456789" * 1000])
        damaged(object_store, ref, b"0123456789" * 999)
        with pytest.raises(ObjectCorrupt, match="9990 bytes, not 10000") as raised:
            object_store.read(ref, max_bytes=MIB)
        assert raised.value.key == KEY
        with pytest.raises(ObjectCorrupt):
            object_store.open_stream(ref)

    def test_a_flipped_byte(self, object_store: ObjectStore) -> None:
        data = bytearray(os.urandom(2 * MIB + 10))
        ref = object_store.put(KEY, [data])
        data[MIB] ^= 1
        damaged(object_store, ref, bytes(data))
        with pytest.raises(ObjectCorrupt, match="digest") as raised:
            object_store.read(ref, max_bytes=1 << 30)
        assert raised.value.key == KEY
        sent = io.BytesIO()
        stream = object_store.open_stream(ref)
        with pytest.raises(ObjectCorrupt):
            sent.writelines(stream)
        assert sent.tell() < len(data), "the download must break off, not end as if it were whole"

    def test_larger_than_the_limit(self, object_store: ObjectStore) -> None:
        ref = object_store.put(KEY, [b"x" * 101])
        with pytest.raises(PayloadTooLarge, match="101 bytes, the limit is 100") as raised:
            object_store.read(ref, max_bytes=100)
        assert raised.value.key == KEY
        assert object_store.read(ref, max_bytes=101).nbytes == 101

    def test_concurrent_puts_of_one_key(self, object_store: ObjectStore) -> None:
        contents = [bytes([n]) * 300_000 for n in range(8)]
        with ThreadPoolExecutor(8) as pool:
            refs = list(pool.map(lambda data: object_store.put(KEY, [data]), contents))
        whole = 0
        for ref, data in zip(refs, contents, strict=True):
            try:
                assert object_store.read(ref, max_bytes=MIB) == data
                whole += 1
            except ObjectCorrupt:
                continue
        assert whole == 1, "one of them, whole"

    def test_puts_and_deletes_at_once(self, object_store: ObjectStore) -> None:
        failures: list[BaseException] = []

        def churn(number: int) -> None:
            key = f"jobs/job-1/payloads/stage/{number}"
            try:
                for _ in range(20):
                    ref = object_store.put(key, [b"x" * 100])
                    object_store.read(ref, max_bytes=100)
                    object_store.delete([key])
            except BaseException as error:  # noqa: BLE001 - reported below
                failures.append(error)

        threads = [threading.Thread(target=churn, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert list(object_store.list()) == []

    def test_delete_is_idempotent(self, object_store: ObjectStore) -> None:
        object_store.put(KEY, [b"x"])
        object_store.put("jobs/job-2/inputs/0", [b"y"])
        object_store.delete([KEY, "jobs/job-3/inputs/0"])
        object_store.delete([KEY])
        object_store.delete([])
        assert [found.key for found in object_store.list()] == ["jobs/job-2/inputs/0"]

    def test_list(self, object_store: ObjectStore) -> None:
        keys = ["a-b/1", "a/1", "a/2/x", "a/2.y", "a.b/1", "ab/1", "b/1"]
        for key in keys:
            object_store.put(key, [key.encode()])
        found = sorted(object_store.list(), key=lambda each: each.key)
        assert [each.key for each in found] == sorted(keys)
        assert [each.size for each in found] == [len(key) for key in sorted(keys)]
        for each in found:
            assert each.modified.tzinfo == UTC
            assert abs(datetime.now(UTC) - each.modified) < timedelta(minutes=5)
        assert sorted(each.key for each in object_store.list("a/")) == ["a/1", "a/2.y", "a/2/x"]
        assert sorted(each.key for each in object_store.list("a/2")) == ["a/2.y", "a/2/x"]
        assert [each.key for each in object_store.list("nothing/here/")] == []
        assert [each.key for each in object_store.list("a/1/2/")] == []

    def test_more_than_a_page(self, object_store: ObjectStore) -> None:
        keys = [f"jobs/job-1/inputs/{n:04}" for n in range(1100)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: object_store.put(key, [b"x"]), keys))
        assert sorted(found.key for found in object_store.list("jobs/")) == keys
        object_store.delete(found.key for found in object_store.list("jobs/"))
        assert list(object_store.list("jobs/")) == []

    @pytest.mark.parametrize(
        "key",
        [
            *(
                "",
                "/etc/passwd",
                "../outside",
                "a/../b",
                "a//b",
                "a/",
                "a/.",
                ".hidden",
                "a/.hidden",
                "a b",
                "ä",
                "a\n",
            ),
            *("a\x00b", "a\\b", "x" * 600, "/".join("y" * 400), "a/" + "x" * 300),
        ],
    )
    def test_keys_that_no_store_takes(self, object_store: ObjectStore, key: str) -> None:
        with pytest.raises(StorageError) as raised:
            object_store.put(key, [b"x"])
        assert not raised.value.retryable
        with pytest.raises(StorageError):
            object_store.delete([key])
        with pytest.raises(ValueError, match="key"):
            ObjectRef(key=key, size=1, digest=f"xxh3:{0:032}")

    def test_check_and_prepare(self, object_store: ObjectStore) -> None:
        object_store.check()
        object_store.prepare()
        object_store.check()
        assert [found.key for found in object_store.list() if found.key != "write-check"] == []

    def test_media_types_and_artifact_names(self, object_store: ObjectStore) -> None:
        ref = object_store.put(artifact_key("job-1", "code2wav", 2, "audio.wav"), [b"RIFF"], media_type="audio/wav")
        assert ref.key == "jobs/3f/job-1/artifacts/code2wav/2/audio.wav"
        assert object_store.read(ref, max_bytes=4) == b"RIFF"

    def test_two_stores_on_the_same_settings_see_the_same(self, storage_settings: Settings) -> None:
        ref = open_store(storage_settings).put(KEY, [b"shared"])
        assert open_store(storage_settings).read(ref, max_bytes=MIB) == b"shared"


class TestRefs:
    @pytest.mark.parametrize(
        "change",
        [{"size": -1}, {"size": True}, {"size": "5"}, {"digest": "xxh3:12"}, {"digest": f"md5:{0:032}"}, {"more": 1}],
    )
    def test_refused(self, change: dict[str, object]) -> None:
        with pytest.raises(ValueError, match="validation error"):
            ObjectRef.model_validate(ref_of(KEY, b"").model_dump() | change)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-shown")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://bucket/prefix",
            "objects",
            "s3://",
            "s3://B",
            "s3://key:secret@bucket/x",
            "file:relative",
            "file://host/x",
        ),
        *("s3://bucket/../secret", "s3://bucket?versionId=1", "s3://[secret", "file:///secret%00", "http://[::1"),
    ],
)
def test_urls_that_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(Settings(data_dir=tmp_path, storage_url=url))
    assert raised.value.field == "storage_url"
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        *("nonsense", "http://key:secret@127.0.0.1:1", "http://host?key=secret", "http://host:0", "http://host:80:80"),
        *("http://[::1", "http://[::1]80", "http://[secret]:80", "http://-secret-", "http://se\x00cret", "s3://host"),
    ],
)
@pytest.mark.parametrize("setting", ["s3_endpoint_url", "s3_public_endpoint_url"])
@pytest.mark.usefixtures("credentials")
def test_endpoints_that_are_refused(tmp_path: Path, url: str, setting: str) -> None:
    settings = Settings(data_dir=tmp_path, storage_url="s3://bucket", download_url_s=60)
    with pytest.raises(ConfigError) as raised:
        open_store(settings.model_copy(update={setting: url}))
    assert raised.value.field == setting
    assert "secret" not in str(raised.value)


class TestLocal:
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalObjectStore:
        return LocalObjectStore(tmp_path / "objects")

    def test_a_byte_that_rots_on_the_disk(self, store: LocalObjectStore, tmp_path: Path) -> None:
        ref = store.put(KEY, [bytes(10_000)])
        with store.path(KEY).open("r+b") as file:
            file.seek(5000)
            file.write(b"\x01")
        with pytest.raises(ObjectCorrupt):
            store.read(ref, max_bytes=MIB)

    def test_a_job_makes_no_directory(self, store: LocalObjectStore, tmp_path: Path) -> None:
        store.put(KEY, [b"x"])
        store.put(input_key("job-1", 0), [b"x"])
        shard = (tmp_path / "objects" / job_prefix("job-1")).parent
        assert sorted(path.name for path in shard.iterdir()) == ["job-1,inputs,0", "job-1,payloads,thinker,1"]
        store.delete([KEY, input_key("job-1", 0)])
        assert list(shard.iterdir()) == []

    def test_a_directory_that_somebody_took_away(self, store: LocalObjectStore, tmp_path: Path) -> None:
        store.put(KEY, [b"x"])
        shutil.rmtree(tmp_path / "objects/jobs")
        assert store.read(store.put(KEY, [b"y"]), max_bytes=1) == b"y"

    def test_the_longest_key(self, store: LocalObjectStore) -> None:
        key = f"a/b/{'c' * 199}/{'d' * 36}"
        assert len(key) == MAX_KEY_LENGTH
        store.put(key, [b"x"])
        assert key in {found.key for found in store.list("a/b/")}

    def test_a_put_that_fails_leaves_nothing(self, store: LocalObjectStore, tmp_path: Path) -> None:
        def broken(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        ref = store.put(KEY, [b"old"])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "fdatasync", broken)
            with pytest.raises(StorageUnavailable, match="no space left") as raised:
                store.put(KEY, [b"new"])
        assert raised.value.retryable
        assert raised.value.key == KEY
        assert list((tmp_path / "objects/.partial").iterdir()) == []
        assert store.read(ref, max_bytes=3) == b"old"

    def test_a_key_above_another(self, store: LocalObjectStore) -> None:
        store.put("a/b", [b"x"])
        for key in ("a", "a/b/c"):
            with pytest.raises(StorageError) as raised:
                store.put(key, [b"y"])
            assert not raised.value.retryable

    def test_what_a_killed_process_left_is_removed(self, store: LocalObjectStore, tmp_path: Path) -> None:
        old, young = (tmp_path / "objects/.partial" / name for name in ("old", "young"))
        old.write_bytes(b"half")
        young.write_bytes(b"half")
        two_days_ago = time.time() - 2 * 86_400
        os.utime(old, (two_days_ago, two_days_ago))
        LocalObjectStore(tmp_path / "objects")
        assert not old.exists()
        assert young.exists()

    @pytest.mark.parametrize("kind", ["fifo", "device", "directory", "link"])
    def test_what_is_no_file_is_no_object_and_nobody_waits_for_it(
        self, store: LocalObjectStore, tmp_path: Path, kind: str
    ) -> None:
        ref = store.put(KEY, [b""])
        path = store.path(KEY)
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)  # nobody writes: who opens it to read would wait
        elif kind == "device":
            try:
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
            except PermissionError:
                pytest.skip("only root makes a device")
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to("/etc/hostname")
        for read in (lambda: store.read(ref, max_bytes=1), lambda: b"".join(store.open_stream(ref))):
            with pytest.raises((ObjectMissing, StorageUnavailable)):
                read()

    def test_a_directory_that_is_a_link_is_not_followed(self, store: LocalObjectStore, tmp_path: Path) -> None:
        ref = store.put(KEY, [b"x"])
        folder = store.path(KEY).parent
        for within in (folder, folder.parent):
            within.rename(tmp_path / "elsewhere")
            within.symlink_to(tmp_path / "elsewhere")
            with pytest.raises(ObjectMissing):
                store.read(ref, max_bytes=1)
            assert list(store.list()) == list(store.list(KEY)) == []
            store.delete([KEY])
            with pytest.raises(StorageError, match="is a link"):
                LocalObjectStore(tmp_path / "objects").put(KEY, [b"y"])
            within.unlink()
            (tmp_path / "elsewhere").rename(within)
            assert store.read(ref, max_bytes=1) == b"x"

    def test_a_directory_that_cannot_be_made_yet(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "file").write_bytes(b"")
        store = LocalObjectStore(tmp_path / "file" / "objects")
        assert "not usable yet: creating the object directory failed" in caplog.text
        with pytest.raises(StorageUnavailable, match="creating the object directory") as raised:
            store.check()
        assert raised.value.retryable
        with pytest.raises(StorageUnavailable, match="creating the object directory"):
            store.put(KEY, [b"x"])
        (tmp_path / "file").unlink()
        assert store.read(store.put(KEY, [b"x"]), max_bytes=1) == b"x"

    def test_a_directory_that_went_is_not_made_by_a_put(self, store: LocalObjectStore, tmp_path: Path) -> None:
        (tmp_path / "objects").rename(tmp_path / "unmounted")
        with pytest.raises(StorageUnavailable):
            store.put(KEY, [b"x"])
        assert not (tmp_path / "objects").exists()
        (tmp_path / "unmounted").rename(tmp_path / "objects")
        store.put(KEY, [b"x"])

    @pytest.mark.parametrize("gone", ["objects", "objects/.partial", "."])
    def test_while_the_directory_is_away_no_object_counts_as_missing(self, tmp_path: Path, gone: str) -> None:
        """``.partial`` alone: the directory on which something was mounted stays, and is empty."""
        data = tmp_path / "data"
        store = LocalObjectStore(data / "objects")
        ref = store.put(KEY, [b"x"])
        (data / "objects").rename(tmp_path / "unmounted")
        if gone == "objects/.partial":
            (data / "objects").mkdir()
        elif gone == ".":
            data.rmdir()
        calls: dict[str, Callable[[], object]] = {
            "read": lambda: store.read(ref, max_bytes=1),
            "stream": lambda: store.open_stream(ref),
            "delete": lambda: store.delete([KEY]),
            "list": lambda: list(store.list("jobs/")),
        }
        for name, call in calls.items():
            with pytest.raises(StorageUnavailable, match="finding the object directory") as raised:
                call()
            assert raised.value.retryable, name
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        (tmp_path / "unmounted").rename(data / "objects")
        assert store.read(ref, max_bytes=1) == b"x"
        store.delete([KEY])
        store.delete([KEY])
        with pytest.raises(ObjectMissing):
            store.read(ref, max_bytes=1)

    def test_check_of_a_directory_that_went(self, store: LocalObjectStore, tmp_path: Path) -> None:
        (tmp_path / "objects/.partial").rmdir()
        (tmp_path / "objects").rmdir()
        with pytest.raises(StorageUnavailable):
            store.check()
        store.prepare()
        store.check()

    def test_a_range_is_read_from_its_first_byte_to_its_last(
        self, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file's position shows what was read, because it is read without a buffer."""
        ref = store.put(KEY, [bytes(5 * MIB)])
        found: list[int] = []

        class Watched(io.FileIO):
            def read(self, size: int | None = -1, /) -> bytes:
                found.append(self.tell())
                piece = super().read(size)
                found.append(self.tell())
                return piece

        monkeypatch.setattr("omni_jobs.storage.local.FileIO", Watched)
        assert sum(map(len, store.open_range(ref, 3 * MIB, 4 * MIB + 7))) == MIB + 7
        assert (min(found), max(found)) == (3 * MIB, 4 * MIB + 7)

    def test_a_file_that_shrinks_while_a_range_is_read(self, store: LocalObjectStore) -> None:
        ref = store.put(KEY, [bytes(3 * MIB)])
        pieces = store.open_range(ref, 0, 3 * MIB)
        next(pieces)
        os.truncate(store.path(KEY), MIB + 5)
        with pytest.raises(ObjectCorrupt, match=f"ends at byte {MIB + 5} of {3 * MIB}"):
            list(pieces)

    def test_there_is_no_download_url(self, store: LocalObjectStore) -> None:
        assert store.download_url(store.put(KEY, [b"x"]), media_type="audio/wav", disposition="inline") is None


class TestS3:
    @pytest.mark.usefixtures("credentials")
    def test_a_wrong_endpoint_is_told(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        store = open_store(
            Settings(data_dir=tmp_path, storage_url="s3://bucket", s3_endpoint_url=f"http://127.0.0.1:{port}")
        )
        with pytest.raises(StorageUnavailable, match=r"EndpointConnectionError") as raised:
            store.check()
        assert raised.value.retryable
        assert "not-to-be-shown" not in str(raised.value)
        with pytest.raises(StorageUnavailable):
            store.put(KEY, [b"x"])
        with pytest.raises(StorageUnavailable):
            store.read(ref_of(KEY, b"x"), max_bytes=1)

    def test_wrong_credentials(self, seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-shown")
        store = open_store(seaweedfs.settings(tmp_path, "x"))
        for refused in (store.check, lambda: store.put(KEY, [b"x"]), lambda: list(store.list())):
            with pytest.raises(StorageUnavailable) as raised:
                refused()
            assert "not-to-be-shown" not in f"{raised.value} {raised.value.__cause__}"

    def test_prepare_makes_the_bucket(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        settings = seaweedfs.settings(tmp_path, "x")
        store = open_store(settings.model_copy(update={"storage_url": "s3://another-bucket/x"}))
        with pytest.raises(StorageUnavailable, match="bucket"):
            store.check()
        store.prepare()
        store.prepare()
        store.check()
        assert store.read(store.put(KEY, [b"x"]), max_bytes=1) == b"x"

    def test_a_bucket_that_is_not_there(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        settings = seaweedfs.settings(tmp_path, "x")
        store = open_store(settings.model_copy(update={"storage_url": "s3://no-such-bucket"}))
        with pytest.raises(StorageUnavailable) as raised:
            store.put(KEY, [b"x"])
        assert not isinstance(raised.value, ObjectMissing)

    def test_the_key_and_media_type_on_the_wire(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        store = open_store(seaweedfs.settings(tmp_path, "deep/prefix"))
        store.put(KEY, [b"x"], media_type="audio/wav")
        client = boto3.client("s3", endpoint_url=seaweedfs.endpoint_url, region_name="us-east-1")
        found = client.head_object(Bucket=seaweedfs.bucket, Key=f"deep/prefix/{KEY}")
        assert found["ContentType"] == "audio/wav"
        assert [each.key for each in store.list()] == [KEY]

    @pytest.mark.parametrize(
        "disposition", ['inline; filename="a.wav"', "attachment; filename=\"_\"; filename*=UTF-8''%E6%BC%A2"]
    )
    def test_whoever_has_the_download_url_gets_the_object_under_the_name_that_it_was_signed_with(
        self, seaweedfs: SeaweedFS, tmp_path: Path, disposition: str
    ) -> None:
        store = open_store(seaweedfs.settings(tmp_path, "x").model_copy(update={"download_url_s": 60}))
        ref = store.put(KEY, [b"0123456789"], media_type="text/html")
        url, head_url = (
            store.download_url(ref, media_type="audio/wav", disposition=disposition, head_only=head_only)
            for head_only in (False, True)
        )
        assert url is not None
        assert head_url is not None
        whole = httpx2.get(url)
        assert (whole.status_code, whole.content) == (200, b"0123456789")
        part = httpx2.get(url, headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
        head = httpx2.head(head_url)
        assert (head.status_code, head.headers["content-length"]) == (200, "10")
        for answer in (whole, part, head):
            assert answer.headers["content-type"] == "audio/wav"
            assert answer.headers["content-disposition"] == disposition
        for changed in (
            url.replace("audio", "video"),
            url.replace("Expires=60", "Expires=61"),
            url.replace("/x/", "/y/"),
        ):
            assert changed != url
            assert httpx2.get(changed).status_code == 403
        assert httpx2.delete(url).status_code == 403
        assert store.read(ref, max_bytes=10) == b"0123456789"

    def test_a_download_url_names_the_endpoint_that_clients_reach(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
            reached = {"download_url_s": 60, "s3_public_endpoint_url": proxy.url}
            store = open_store(seaweedfs.settings(tmp_path, "x").model_copy(update=reached))
            ref = store.put(KEY, [b"x"])
            url = store.download_url(ref, media_type="audio/wav", disposition="inline")
            assert url is not None
            assert url.startswith(f"{proxy.url}/{seaweedfs.bucket}/x/{KEY}?")
            assert httpx2.get(url).content == b"x"

    def test_there_is_no_download_url_unless_the_setting_says_so(self, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
        store = open_store(seaweedfs.settings(tmp_path, "x"))
        assert store.download_url(store.put(KEY, [b"x"]), media_type="audio/wav", disposition="inline") is None
