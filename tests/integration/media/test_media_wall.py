"""omni_jobs.media.wall: what decoders give, what they are, and what becomes of those that die."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import DecodersUnavailable, InvalidRequest, OmniJobsError, RequestTooLarge
from omni_jobs.media.audio import decode_audio, header_of_audio, probe_audio
from omni_jobs.media.decoder_host import answer_of_exit
from omni_jobs.media.image import decode_image, header_of_image, probe_image
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.video import decode_video, header_of_video, probe_video
from omni_jobs.media.wall import MediaWall
from omni_jobs.settings import Settings
from tests import hostile
from tests.oracles import samples

SETTINGS = Settings(decoders=2)
LIMITS = MediaLimits.of(SETTINGS)
# A picture that takes its decoder very long, for who sets no limits.
SLOW = hostile.jpeg_scan_bomb(5_000, 2_000)
UNBOUNDED = {"max_image_scans": 1 << 40, "max_scanned_pixels": 1 << 60}
SOON_S = 30.0  # nothing here takes a tenth of it


@pytest.fixture(scope="module")
def wall() -> Iterator[MediaWall]:
    with MediaWall(SETTINGS) as wall:
        yield wall


def processes_below(pid: int) -> set[int]:
    found, parents = set(), {pid}
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    while parents:
        parents = {child for parent in parents for child in children.get(parent, [])}
        found |= parents
    return found


def decoders_of(wall: MediaWall) -> set[int]:
    """Those below the host that may write no file."""
    assert wall.pid is not None
    return {pid for pid in processes_below(wall.pid) if "Max file size             0 " in limits_of(pid)}


def limits_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/limits").read_text()
    except OSError:
        return ""


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(pids: set[int]) -> None:
    """Wait until they have ended; a process is told of by its descriptor."""
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([watched], [], [], SOON_S)[0], (
            f"{pid} lives: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"
        )
        os.close(watched)


# What comes out


EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
MEDIA: dict[str, tuple[str, Callable[[], bytes]]] = {
    "wav": ("audio", lambda: samples.wav(0.7)),
    "wav 24": ("audio", lambda: samples.audio(0.7, rate=44_100, channels=2, subtype="PCM_24")),
    "flac": ("audio", lambda: samples.audio(3.0, rate=48_000, channels=2, format="FLAC")),
    "mp3": ("audio", lambda: samples.audio(1.0, rate=44_100, format="MP3")),
    "ogg": ("audio", lambda: samples.audio(1.0, rate=48_000, channels=2, format="OGG", subtype="VORBIS")),
    "opus": ("audio", lambda: samples.audio(1.0, rate=48_000, format="OGG", subtype="OPUS")),
    "png": ("image", lambda: samples.image(641, 480)),
    "png noise": ("image", lambda: hostile.png_noise(300)),
    "png of 19 MB": ("image", lambda: hostile.png_noise(2_500)),
    "png 16": ("image", lambda: samples.image(64, 64, mode="I;16")),
    "png rgba": ("image", lambda: samples.image(64, 64, mode="RGBA")),
    "png palette": ("image", lambda: samples.image(64, 64, mode="P")),
    "jpeg": ("image", lambda: samples.image(300, 200, format="JPEG")),
    "jpeg turned": ("image", lambda: samples.image(64, 48, format="JPEG", exif=EXIF)),
    "jpeg scans": ("image", lambda: samples.image(300, 200, format="JPEG", progressive=True)),
    "jpeg cmyk": ("image", lambda: samples.image(64, 64, format="JPEG", mode="CMYK")),
    "webp": ("image", lambda: samples.image(300, 200, format="WEBP")),
    "gif": ("image", lambda: samples.image(300, 200, format="GIF")),
    "mp4": ("video", lambda: samples.video(30)),
    "mp4 large": ("video", lambda: samples.video(5, width=1280, height=720)),
    "mp4 of 40 frames": ("video", lambda: samples.video(200, width=960, height=540)),
    "mp4 fragments": ("video", lambda: samples.video(9, options={"movflags": "frag_keyframe+empty_moov"})),
    "webm": ("video", lambda: samples.video(20, codec="libvpx", format="webm")),
    "mkv": ("video", lambda: samples.video(20, format="matroska")),
    "avi": ("video", lambda: samples.video(20, format="avi")),
}
HEADERS: dict[str, Callable[..., Any]] = {"audio": header_of_audio, "image": header_of_image, "video": header_of_video}
PROBES: dict[str, Callable[..., Any]] = {"audio": probe_audio, "image": probe_image, "video": probe_video}


@pytest.mark.parametrize("name", MEDIA)
def test_a_decoder_returns_the_same_as_the_function_in_process(wall: MediaWall, name: str) -> None:
    kind, made = MEDIA[name]
    data = made()
    budget = wall.budget()
    assert wall.header(kind, data, budget) == HEADERS[kind](data, LIMITS)  # type: ignore[arg-type]
    assert wall.probe(kind, data, budget) == PROBES[kind](data, LIMITS)  # type: ignore[arg-type]
    if kind == "audio":
        expected, found = decode_audio(data, 16_000, LIMITS), wall.decode_audio(data, 16_000)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        # Where a file named ._ lies in this directory, libsndfile opens no MP3 in process, and FFmpeg reads it.
        np.testing.assert_array_equal(found, expected)
        found += 1  # the reader's own
    elif kind == "image":
        picture, there = decode_image(data, LIMITS), wall.decode_image(data)
        assert (there.mode, there.size, there.tobytes()) == (picture.mode, picture.size, picture.tobytes())
    else:
        (frames, metadata), (found, there) = decode_video(data, LIMITS), wall.decode_video(data)
        assert there == metadata
        assert (found.dtype, found.shape, found.tobytes()) == (frames.dtype, frames.shape, frames.tobytes())
        found += 1


def test_a_decoder_refuses_as_the_function_in_process(wall: MediaWall) -> None:
    for kind, data in (("image", b"no picture"), ("audio", samples.wav(0.01)), ("video", samples.video(9)[:200])):
        with pytest.raises(InvalidRequest) as expected:
            PROBES[kind](data, LIMITS)
        with pytest.raises(InvalidRequest) as found:
            wall.probe(kind, data, wall.budget())  # type: ignore[arg-type]
        assert found.value.message == expected.value.message


def test_many_at_once_get_each_their_own(wall: MediaWall) -> None:
    clips = [samples.wav(0.2 + number / 100) for number in range(40)]
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda clip: wall.probe("audio", clip, wall.budget()), clips))
    assert found == [probe_audio(clip, LIMITS) for clip in clips]


# What a decoder is


ENVIRONMENT = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "LANG", "LC_CTYPE", "PYTHONNOUSERSITE", "PYTHONPATH"),
        *("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    )
)


def test_no_process_before_the_first_medium() -> None:
    with MediaWall(SETTINGS) as wall:
        assert wall.pid is None


def test_no_credential_is_in_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OMNI_JOBS_BROKER_URL",
        "OMNI_JOBS_DATABASE_URL",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "SOME_PASSWORD",
    ):
        monkeypatch.setenv(name, f"secret of {name}")
    with MediaWall(SETTINGS) as wall:
        wall.probe("image", samples.image(), wall.budget())
        assert wall.pid is not None
        wait_for(lambda: len(decoders_of(wall)) == 2)
        pids = {wall.pid, *processes_below(wall.pid)}
        for pid in pids:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert environment
            names = {line.partition(b"=")[0].decode() for line in environment.split(b"\0") if line}
            assert names <= ENVIRONMENT
            assert b"secret" not in environment


DO: dict[str, Callable[[MediaWall], object]] = {
    "probe": lambda wall: wall.probe("image", samples.image(), wall.budget()),
    "decode sound": lambda wall: wall.decode_audio(samples.wav()),
    "decode image": lambda wall: wall.decode_image(samples.image()),
    "decode video": lambda wall: wall.decode_video(samples.video(5)),
}


@pytest.mark.parametrize("what", DO)
def test_a_decoders_limits(what: str) -> None:
    with MediaWall(SETTINGS.model_copy(update={"decoders": 1})) as wall:
        DO[what](wall)
        check_limits(wall)


def check_limits(wall: MediaWall) -> None:
    for pid in decoders_of(wall):
        limits = {line[:26].strip(): line[26:].split()[0] for line in limits_of(pid).splitlines()[1:]}
        assert limits["Max core file size"] == limits["Max file size"] == "0"
        assert int(limits["Max open files"]) <= 64
    [decoder] = decoders_of(wall)
    assert os.getpriority(os.PRIO_PROCESS, decoder) > os.getpriority(os.PRIO_PROCESS, 0)
    of = {line[:26].strip(): line[26:].split() for line in limits_of(decoder).splitlines()[1:]}
    assert int(of["Max address space"][0]) < SETTINGS.decoder_memory_bytes + (2 << 30)
    assert of["Max cpu time"][0] == of["Max cpu time"][1], "an idle decoder, which holds the pool's locks, has no limit"


SCRIPT = """
import os, sys
from omni_jobs.media.wall import MediaWall
from omni_jobs.settings import Settings
from tests.oracles import samples

wall = MediaWall(Settings(decoders=2))
wall.probe("image", samples.image(), wall.budget())
print(wall.pid, flush=True)
if sys.argv[1] == "stay":
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_decoders_end_with_a_killed_server(number: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT, "stay"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        host = int(process.stdout.readline())
        below = {host, *processes_below(host)}
        assert len(below) >= 4  # the host, its forkserver, two decoders
        process.send_signal(number)
        gone(below)


def test_an_interpreter_ends_that_closed_nothing() -> None:
    """No guard in the script, either: its main module is not imported a second time."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "leave"], capture_output=True, text=True, timeout=SOON_S, check=True
    )
    gone({int(done.stdout)})
    assert done.stderr == ""


def test_close_leaves_no_process() -> None:
    wall = MediaWall(SETTINGS)
    wall.probe("image", samples.image(), wall.budget())
    assert wall.pid is not None
    below = {wall.pid, *processes_below(wall.pid)}
    wall.close()
    gone(below)
    with pytest.raises(DecodersUnavailable):
        wall.probe("image", samples.image(), wall.budget())


# Decoders that die


@pytest.fixture
def slow_wall() -> Iterator[MediaWall]:
    """One decoder, and nobody who stops it."""
    with MediaWall(SETTINGS.model_copy(update={**UNBOUNDED, "decoders": 1, "decoders_waiting": 0})) as wall:
        wall.probe("image", samples.image(), wall.budget())
        yield wall


def cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def while_decoding(wall: MediaWall, then: Callable[[int], None], medium: bytes = SLOW) -> BaseException | None:
    """``then``, with the decoder's pid, while it decodes something that takes long; what became of that."""
    [decoder] = decoders_of(wall)
    before = cpu_ticks(decoder)
    outcome: list[BaseException | None] = []

    def decode() -> None:
        try:
            wall.probe("image", medium, wall.budget())
            outcome.append(None)
        except OmniJobsError as error:
            outcome.append(error)

    thread = threading.Thread(target=decode)
    thread.start()
    wait_for(lambda: cpu_ticks(decoder) > before + 10)
    then(decoder)
    thread.join(SOON_S)
    assert not thread.is_alive()
    return outcome[0]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT])
def test_a_decoder_that_dies_is_the_requests_error(slow_wall: MediaWall, number: signal.Signals) -> None:
    error = while_decoding(slow_wall, lambda decoder: os.kill(decoder, number))
    assert isinstance(error, InvalidRequest)
    assert number.name in error.message
    assert slow_wall.probe("image", samples.image(), slow_wall.budget()).width == 64  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_decoder_that_is_stopped_is_not_the_requests_error(slow_wall: MediaWall, number: signal.Signals) -> None:
    """It is tried once more; then its client may, or its job's next attempt."""

    def stop_twice(decoder: int) -> None:
        os.kill(decoder, number)
        wait_for(lambda: decoders_of(slow_wall) - {decoder} != set())
        [other] = decoders_of(slow_wall) - {decoder}
        before = cpu_ticks(other)
        wait_for(lambda: cpu_ticks(other) > before + 10)
        os.kill(other, number)

    error = while_decoding(slow_wall, stop_twice)
    assert isinstance(error, DecodersUnavailable)
    assert number.name in str(error)
    assert slow_wall.probe("image", samples.image(), slow_wall.budget()).width == 64  # type: ignore[union-attr]


@pytest.mark.parametrize("victim", ["host", "server of forks"])
def test_the_death_of_a_process_above_a_decoder_is_not_the_requests_error(slow_wall: MediaWall, victim: str) -> None:
    def kill(decoder: int) -> None:
        parent = int(Path(f"/proc/{decoder}/stat").read_text().rpartition(")")[2].split()[1])
        assert slow_wall.pid is not None
        os.kill(slow_wall.pid if victim == "host" else parent, signal.SIGKILL)

    assert while_decoding(slow_wall, kill, hostile.jpeg_scan_bomb(1_000, 1_000)) is None


def test_a_long_path_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of forks has a socket below it, whose path may not be long."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    with MediaWall(SETTINGS) as wall:
        assert wall.probe("image", samples.image(), wall.budget()).width == 64  # type: ignore[union-attr]


@pytest.mark.parametrize("status", [1, 255, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGRTMIN, -signal.SIGRTMIN - 6])
def test_endings_that_no_medium_causes(status: int) -> None:
    assert set(answer_of_exit(status)) == {"unavailable"}


def test_endings_that_a_medium_causes() -> None:
    assert answer_of_exit(-signal.SIGXCPU) == {"ended": "time"}
    assert answer_of_exit(-signal.SIGSEGV) == {"ended": "SIGSEGV"}


def test_a_host_that_dies_is_not_the_requests_error(slow_wall: MediaWall) -> None:
    """Its work is done again by the next one; what broke is not seen, unless that breaks too."""
    first = slow_wall.pid
    assert first is not None
    below = processes_below(first)
    os.kill(first, signal.SIGKILL)
    gone(below)
    assert slow_wall.probe("image", samples.image(), slow_wall.budget()).width == 64  # type: ignore[union-attr]
    assert slow_wall.pid != first


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_decoders_that_die_while_idle_are_replaced(wall: MediaWall, number: signal.Signals) -> None:
    for _ in range(3):
        wall.probe("image", samples.image(), wall.budget())
        wait_for(lambda: len(decoders_of(wall)) == 2)
        for decoder in decoders_of(wall):
            os.kill(decoder, number)
        assert wall.probe("image", samples.image(), wall.budget()).width == 64  # type: ignore[union-attr]


def test_a_decoder_that_takes_too_long_is_killed() -> None:
    with MediaWall(SETTINGS.model_copy(update={**UNBOUNDED, "decoders": 1, "probe_limit_s": 0.5})) as wall:
        wall.probe("image", samples.image(), wall.budget())
        decoders = decoders_of(wall)
        with pytest.raises(RequestTooLarge, match=r"not decoded after 0\.[45]"):
            wall.probe("image", SLOW, wall.budget())
        gone(decoders)
        assert wall.probe("image", samples.image(), wall.budget()).width == 64  # type: ignore[union-attr]


def test_the_media_of_one_submit_share_their_time() -> None:
    with MediaWall(SETTINGS.model_copy(update={**UNBOUNDED, "probe_limit_s": 1.5})) as wall:
        budget = wall.budget()
        part = hostile.jpeg_scan_bomb(150, 1_500)

        def ask() -> None:
            for _ in range(1_000):
                wall.probe("image", part, budget)

        with pytest.raises(RequestTooLarge):
            ask()


def test_a_decoder_takes_no_more_memory_than_it_may() -> None:
    with MediaWall(SETTINGS.model_copy(update={"decoders": 1, "decoder_memory_bytes": 16 << 20})) as wall:
        with pytest.raises(RequestTooLarge, match="more memory"):
            wall.probe("image", samples.image(5_600, 5_600, compress_level=1), wall.budget())
        [decoder] = decoders_of(wall)
        peak = next(line for line in Path(f"/proc/{decoder}/status").read_text().splitlines() if "VmHWM" in line)
        assert int(peak.split()[1]) < 250 << 10
        assert wall.probe("image", samples.image(), wall.budget()).width == 64  # type: ignore[union-attr]


def test_media_that_wait_too_long_or_are_too_many_are_refused(slow_wall: MediaWall) -> None:
    refused: list[OmniJobsError] = []

    def ask(decoder: int) -> None:
        with pytest.raises(DecodersUnavailable, match="too many") as caught:
            slow_wall.probe("image", samples.image(), slow_wall.budget())
        refused.append(caught.value)
        os.kill(decoder, signal.SIGABRT)

    while_decoding(slow_wall, ask)
    assert (refused[0].http_status, refused[0].retryable) == (503, True)


def test_a_wait_has_its_limit() -> None:
    settings = SETTINGS.model_copy(update={**UNBOUNDED, "decoders": 1, "decoders_wait_s": 0.2})
    with MediaWall(settings) as wall:
        wall.probe("image", samples.image(), wall.budget())

        def ask(decoder: int) -> None:
            with pytest.raises(DecodersUnavailable, match=r"within 0\.2 s"):
                wall.probe("image", samples.image(), wall.budget())
            os.kill(decoder, signal.SIGABRT)

        while_decoding(wall, ask)


def test_a_host_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with MediaWall(SETTINGS) as wall, pytest.raises(DecodersUnavailable, match="no decoder starts"):
        wall.probe("image", samples.image(), wall.budget())


def test_no_descriptor_is_left(wall: MediaWall) -> None:
    wall.probe("image", samples.image(), wall.budget())
    host = wall.pid
    before = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{host}/fd"))
    for _ in range(5):
        assert np.array_equal(
            np.asarray(wall.decode_image(samples.image())), np.asarray(decode_image(samples.image(), LIMITS))
        )
        with pytest.raises(InvalidRequest):
            wall.decode_audio(b"nothing")
    wait_for(lambda: (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{host}/fd"))) == before)
