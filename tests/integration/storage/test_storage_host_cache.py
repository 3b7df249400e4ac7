"""The cache of the host: it never changes what a read gives, only where it comes from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omni_jobs.errors import ConfigError, ObjectCorrupt, ObjectMissing, PayloadTooLarge, StorageUnavailable
from omni_jobs.settings import Settings
from omni_jobs.storage import LocalObjectStore, artifact_key, input_key, open_store, payload_key
from omni_jobs.storage.host_cache import HostCache

MIB = 1 << 20
KEY = payload_key("job-1", "thinker", 1)

Open = Callable[[], HostCache]


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "objects", sync=False)


@pytest.fixture
def cached(store: LocalObjectStore, tmp_path: Path) -> Open:
    """Opens the same cache again, as another process would."""
    return lambda: HostCache(store, tmp_path / "cache", max_bytes=16 * MIB, namespace="here")


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir())


def kept_bytes(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in entries(tmp_path))


def test_a_read_on_the_same_host_needs_no_store(cached: Open, store: LocalObjectStore) -> None:
    data = os.urandom(MIB)
    ref = cached().put(KEY, [data[:10], data[10:]])
    assert store.read(ref, max_bytes=MIB) == data
    store.delete([KEY])  # as good as away
    assert cached().read(ref, max_bytes=MIB) == data
    assert cached().read(ref, max_bytes=MIB).readonly


def test_what_is_not_here_comes_from_the_store(cached: Open, store: LocalObjectStore, tmp_path: Path) -> None:
    ref = store.put(KEY, [b"from another host"])
    assert bytes(cached().read(ref, max_bytes=MIB)) == b"from another host"
    assert entries(tmp_path) == []


@pytest.mark.parametrize("damage", [b"x" * 1000, b"short", b""])
def test_a_damaged_entry_is_a_missing_one(cached: Open, tmp_path: Path, damage: bytes) -> None:
    ref = cached().put(KEY, [b"a" * 1000])
    (entry,) = entries(tmp_path)
    entry.write_bytes(damage)
    assert cached().read(ref, max_bytes=MIB) == b"a" * 1000
    assert entries(tmp_path) == []
    assert cached().read(ref, max_bytes=MIB) == b"a" * 1000


def test_damage_in_the_store_is_told(cached: Open, store: LocalObjectStore) -> None:
    ref = store.put(KEY, [b"a" * 1000])
    store.put(KEY, [b"b" * 1000])
    with pytest.raises(ObjectCorrupt):
        cached().read(ref, max_bytes=MIB)


def test_the_limit_holds_for_what_is_kept(cached: Open) -> None:
    ref = cached().put(KEY, [b"x" * 101])
    with pytest.raises(PayloadTooLarge):
        cached().read(ref, max_bytes=100)


def test_a_delete_forgets(cached: Open, tmp_path: Path) -> None:
    ref = cached().put(KEY, [b"x"])
    read = cached().read(ref, max_bytes=MIB)
    cached().delete(key for key in [KEY])
    assert entries(tmp_path) == []
    with pytest.raises(ObjectMissing):
        cached().read(ref, max_bytes=MIB)
    assert bytes(read) == b"x"


def test_only_what_stages_read_is_kept(cached: Open, tmp_path: Path) -> None:
    cached().put(artifact_key("job-1", "code2wav", 1, "audio.wav"), [b"RIFF"])
    assert entries(tmp_path) == []
    cached().put(input_key("job-1", 0), [b"RIFF"])
    assert len(entries(tmp_path)) == 1


def test_what_the_store_refused_is_not_kept(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "objects", sync=False)
    cache = HostCache(store, tmp_path / "cache", max_bytes=16 * MIB, namespace="here")
    (tmp_path / "objects").rename(tmp_path / "away")
    with pytest.raises(StorageUnavailable):
        cache.put(KEY, [b"x"])
    assert entries(tmp_path) == []


def test_two_stores_in_one_directory_do_not_mix(tmp_path: Path) -> None:
    caches = [
        HostCache(LocalObjectStore(tmp_path / name, sync=False), tmp_path / "cache", max_bytes=16 * MIB, namespace=name)
        for name in ("one", "other")
    ]
    refs = [cache.put(KEY, [name]) for cache, name in zip(caches, (b"one", b"other"), strict=True)]
    assert [cache.read(ref, max_bytes=MIB) for cache, ref in zip(caches, refs, strict=True)] == [b"one", b"other"]
    assert len(entries(tmp_path)) == 2


def test_the_oldest_go_when_there_is_no_room(cached: Open, tmp_path: Path) -> None:
    cache = cached()
    refs = []
    for number in range(40):
        refs.append(cache.put(payload_key(f"job-{number}", "first", 1), [os.urandom(MIB)]))
        for age, path in enumerate(sorted(entries(tmp_path), key=lambda entry: entry.stat().st_mtime_ns)):
            os.utime(path, ns=(0, time.time_ns() - (100 - age) * 10**9))  # in order, whatever the clock's steps
        assert kept_bytes(tmp_path) <= 16 * MIB
    assert kept_bytes(tmp_path) >= 12 * MIB
    newest = bytes(cache.read(refs[-1], max_bytes=MIB))
    assert newest in [path.read_bytes() for path in entries(tmp_path)]
    assert cache.read(refs[0], max_bytes=MIB).nbytes == MIB  # from the store


def test_what_is_too_large_is_not_kept(cached: Open, tmp_path: Path) -> None:
    ref = cached().put(KEY, [b"x" * (4 * MIB + 1)])
    assert entries(tmp_path) == []
    assert cached().read(ref, max_bytes=5 * MIB).nbytes == 4 * MIB + 1


def test_what_nobody_came_for_goes(cached: Open, tmp_path: Path) -> None:
    cached().put(KEY, [b"x"])
    left_by_a_killed_writer = tmp_path / "cache" / ".0123"
    left_by_a_killed_writer.write_bytes(b"half")
    for path in entries(tmp_path):
        os.utime(path, (0, time.time() - 3600))
    cached().put(payload_key("job-2", "thinker", 1), [b"y"])
    (kept,) = entries(tmp_path)
    assert kept.read_bytes() == b"y"


def test_a_directory_that_takes_nothing_costs_nothing_but_time(cached: Open, tmp_path: Path) -> None:
    cache = cached()
    (tmp_path / "cache").rmdir()
    ref = cache.put(KEY, [b"x"])
    assert bytes(cache.read(ref, max_bytes=MIB)) == b"x"


def test_many_at_once_on_little_room(store: LocalObjectStore, tmp_path: Path) -> None:
    """Puts, reads and evictions of eight threads on two caches of one directory."""
    caches = [HostCache(store, tmp_path / "cache", max_bytes=MIB, namespace="here") for _ in range(2)]

    def hand_on(number: int) -> bool:
        data = number.to_bytes(4, "big") * 25_000
        ref = caches[number % 2].put(payload_key(f"job-{number}", "first", 1), [data])
        return caches[(number + 1) % 2].read(ref, max_bytes=MIB) == data

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(hand_on, range(300)))
    assert kept_bytes(tmp_path) < 2 * MIB


def test_a_directory_that_is_not_ours(store: LocalObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for wrong in (tmp_path / "file", tmp_path / "link"):
        with pytest.raises(ConfigError, match="host_cache_dir"):
            HostCache(store, wrong, max_bytes=MIB, namespace="here")


def test_the_setting(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, host_cache_dir=tmp_path / "cache", storage_sync=False, min_free_bytes=0)
    open_store(settings).put(KEY, [b"x"])
    assert len(entries(tmp_path)) == 1
    assert not isinstance(open_store(settings.model_copy(update={"host_cache_dir": None})), HostCache)
