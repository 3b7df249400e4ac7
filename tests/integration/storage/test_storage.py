"""The contract of object stores, on a local directory and on S3 (SeaweedFS)."""

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from omni_jobs.errors import ConfigError, ObjectCorrupt, ObjectMissing, PayloadTooLarge, StorageError
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, ObjectStore, artifact_key, open_store
from tests.integration.storage.objects import KEY, MIB, damaged, ref_of


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
