"""omni_jobs.files: buffers are written whole, in order, and what cannot be written leaves nothing."""

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from omni_jobs.files import new_file, write_all

BUFFERS = [b"", b"small", os.urandom(3 << 20), *(os.urandom(4096) for _ in range(100)), b"", os.urandom(70_000), b"end"]


def test_every_byte_is_written_in_order_and_shown_before(tmp_path: Path) -> None:
    shown = bytearray()
    with open(tmp_path / "file", "wb", buffering=0) as file:
        written = write_all(file.fileno(), BUFFERS, on_bytes=shown.extend)
        assert not file.closed
    assert (tmp_path / "file").read_bytes() == shown == b"".join(BUFFERS)
    assert written == len(shown)


def test_short_writes_are_finished() -> None:
    """Each signal ends a write to a full pipe early."""
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    source, sink = os.pipe()
    received = bytearray()

    def read() -> None:
        with open(source, "rb", buffering=0) as pipe:
            while part := pipe.read(5000):
                received.extend(part)
                signal.pthread_kill(writer, signal.SIGUSR1)

    writer = threading.get_ident()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        write_all(sink, BUFFERS)
    finally:
        os.close(sink)
        reader.join()
        signal.signal(signal.SIGUSR1, before)
    assert received == b"".join(BUFFERS)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("buffers", [[b"small"], BUFFERS])
def test_a_full_device_is_an_error(buffers: list[bytes]) -> None:
    with open("/dev/full", "wb", buffering=0) as file, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_all(file.fileno(), buffers)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with new_file(tmp_path / "file") as file:
        file.write(b"new")
        assert not (tmp_path / "file").exists()
    with pytest.raises(TypeError), new_file(tmp_path / "file") as file:
        file.writelines([b"other", 7])  # type: ignore[list-item]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"
