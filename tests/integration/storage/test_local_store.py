"""The object store in a local directory."""

import errno
import io
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_jobs.errors import ObjectCorrupt, ObjectMissing, StorageError, StorageUnavailable
from omni_jobs.storage import LocalObjectStore, input_key, job_prefix
from omni_jobs.storage.keys import MAX_KEY_LENGTH
from tests.integration.storage.objects import KEY, MIB


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
