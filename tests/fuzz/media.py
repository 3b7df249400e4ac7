"""Damaged media through the wall, a great many of them:

    python -m tests.fuzz.media --count 1000000 --seed 1 [--json FILE]

Each is damaged anew from a small corpus of every format, and probed as at a submit; every fourth is decoded as
in a worker as well. An input is drawn from the seed and its number alone, so that a finding can be had again.
What killed a decoder, or took its whole time, is the request's error and is kept as ``found-…`` beside the
JSON. The exit code is 1 when the server's side broke: an error of another kind, a host that ended, a decoder
beyond its memory, or an answer that did not come.
"""

import argparse
import random
import re
import resource
import struct
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2s
from itertools import pairwise
from pathlib import Path
from typing import Final

from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.formats import Kind
from omni_jobs.media.wall import MediaWall
from omni_jobs.settings import Settings
from tests import hostile
from tests.oracles import samples
from tests.oracles.samples import mirrored

__all__ = ["Fuzzed", "damaged", "fuzz", "seeds"]

SETTINGS: Final = Settings(decoders=2, decoders_wait_s=600)
_HANG_S: Final = 60.0  # a medium's own limit is 20 s
_MEMORY: Final = SETTINGS.decoder_memory_bytes + (512 << 20)  # and what a decoder is before its first medium
_DECODE_EVERY: Final = 4
_NUMBERS: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def seeds() -> list[tuple[Kind, bytes]]:
    """Small media of every format that is taken, and of forms that hid something from a check once."""
    audio, image, video, sounding = samples.audio, samples.image, samples.video, samples.video_with_sound
    jpeg = image(64, 48, format="JPEG", progressive=True)
    found: list[tuple[Kind, bytes]] = [
        ("audio", samples.wav(0.15)),
        ("audio", audio(0.12, rate=44_100, channels=2, subtype="PCM_24")),
        ("audio", audio(0.15, format="WAVEX", subtype="FLOAT")),
        ("audio", audio(0.15, rate=8_000, subtype="IMA_ADPCM")),
        ("audio", audio(0.3, rate=16_000, channels=2, format="FLAC")),
        ("audio", audio(0.3, rate=22_050, format="MP3")),
        ("audio", audio(0.3, rate=22_050, format="OGG", subtype="VORBIS")),
        ("audio", audio(0.3, rate=24_000, format="OGG", subtype="OPUS")),
        *(("audio", sound) for sound in _sounds()),
        ("image", image(48, 32)),
        ("image", image(48, 32, mode="RGBA")),
        ("image", image(48, 32, mode="P")),
        ("image", image(48, 32, mode="I;16")),
        ("image", image(64, 48, format="JPEG")),
        ("image", jpeg),
        ("image", jpeg[:2] + hostile.mpf_segment() + jpeg[2:]),  # opened as MPO
        ("image", image(64, 48, format="JPEG", mode="CMYK")),
        ("image", image(64, 48, format="WEBP")),
        ("image", image(64, 48, format="WEBP", lossless=True, mode="RGBA")),
        ("image", image(64, 48, format="GIF")),
        *(("image", picture) for picture in _pictures()),
        ("video", video(5)),
        ("video", video(5, options={"movflags": "faststart"})),
        ("video", video(5, options={"movflags": "frag_keyframe+empty_moov"})),
        ("video", video(5, codec="libx264")),
        ("video", sounding()),
        ("video", sounding(format="mp4", sound="aac", options={"movflags": "faststart"}, metadata={"title": "x"})),
        ("video", sounding(sound="alac", metadata={"title": "x"})),
        ("video", hostile.mp4_free_bomb(5)),
        ("video", hostile.mp4_description_bomb(5)),
        ("video", hostile.mp4_meta_bomb(5)),
        ("video", hostile.mp4_edits_bomb(20, 5)),
        ("video", video(4, codec="libvpx", format="webm")),
        ("video", video(4, codec="libvpx-vp9", format="webm")),
        ("video", video(5, codec="h263", width=176, height=144, format="3gp")),
        ("video", mirrored(video(5))),
        ("video", video(5, format="matroska")),
        ("video", video(5, format="avi")),
        ("video", video(5, codec="libx264", format="mpegts")),
    ]
    return found


def _sounds() -> list[bytes]:
    """Sounds of the formats that FFmpeg reads, and one whose writer did not know its length."""
    audio, sound = samples.audio, samples.sound
    unknown = bytearray(samples.wav(0.15))
    struct.pack_into("<I", unknown, unknown.index(b"data") + 4, 2_000_000_000)
    return [
        bytes(unknown),
        audio(0.15, format="RF64"),
        audio(0.15, format="W64"),
        audio(0.15, format="AIFF"),
        audio(0.15, rate=8_000, format="AU", subtype="ULAW"),
        audio(0.15, format="CAF"),
        sound("alac", format="caf", seconds=0.15),
        sound("adpcm_ima_qt", format="aiff", seconds=0.15),
        sound("libmp3lame", format="wav", seconds=0.3),
        sound("flac", format="ogg", seconds=0.15),
        sound("aac", format="adts", seconds=0.15, layout="stereo"),
        sound("aac", format="ipod", seconds=0.15),
        sound("alac", format="ipod", seconds=0.15),
        sound("aac", format="mp4", seconds=0.15, options={"movflags": "frag_keyframe+empty_moov"}),
        sound("libopus", format="webm", seconds=0.15),
        sound("pcm_s16le", format="matroska", seconds=0.12),
        sound("libopencore_amrnb", format="amr", seconds=0.3, rate=8_000),
        sound("libopencore_amrnb", format="3gp", seconds=0.3, rate=8_000),
        samples.video_with_sound(format="mp4", sound="aac"),
        audio(0.15, rate=22_050, format="MP3") * 2,
        audio(0.15, format="OGG", subtype="VORBIS") * 2,
        audio(0.15, format="AU", subtype="G721_32"),
        sound("g722", format="wav", seconds=0.15, rate=16_000),
        sound("aac", format="ipod", seconds=0.15, layout="7.1"),
        sound("libmp3lame", format="avi", seconds=0.15),
        sound("aac", format="mpegts", seconds=0.15),
    ]


def _pictures() -> list[bytes]:
    """Pictures of more formats, and with colour profiles and keys."""
    image, profile = samples.image, samples.DISPLAY_P3
    return [
        image(48, 32, format="AVIF"),
        image(48, 32, format="AVIF", mode="RGBA", icc_profile=profile),
        image(48, 32, format="TIFF"),
        image(48, 32, format="TIFF", mode="RGBA", compression="tiff_lzw", icc_profile=profile),
        image(48, 32, format="TIFF", mode="CMYK", compression="tiff_adobe_deflate"),
        image(48, 32, format="TIFF", mode="1", compression="group4"),
        image(48, 32, format="TIFF", compression="jpeg"),
        image(48, 32, format="TIFF", mode="I;16", compression="packbits"),
        image(48, 32, format="TIFF", mode="I;16", tiffinfo={262: 0}),
        image(48, 32, format="BMP"),
        image(48, 32, format="BMP", mode="P"),
        image(48, 32, icc_profile=profile),
        image(48, 32, format="JPEG", icc_profile=profile),
        image(48, 32, format="WEBP", icc_profile=profile),
        image(48, 32, transparency=(7, 7, 7)),
        image(48, 32, mode="I;16", transparency=1799),
    ]


def damaged(corpus: list[tuple[Kind, bytes]], seed: int, number: int) -> tuple[Kind, bytes]:
    """The same for the same corpus, seed and number."""
    draw = random.Random(f"{seed} {number}")
    kind, whole = draw.choice(corpus)
    data = bytearray(whole)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5, 8))):
        _damage(data, draw, [other for its, other in corpus if its == kind])
    if draw.random() < 0.6:  # else a checksum keeps most damage from what reads the rest
        _mend(data)
    return kind, bytes(data)


def _damage(data: bytearray, draw: random.Random, others: list[bytes]) -> None:
    # Mostly in front: the headers.
    at = draw.randrange(len(data)) if draw.random() < 0.5 else draw.randrange(min(len(data), 400))
    match draw.randrange(9):
        case 0:
            data[at] ^= 1 << draw.randrange(8)
        case 1:
            data[at] = draw.randrange(256)
        case 2 | 3:
            size, order = draw.choice((1, 2, 4, 8)), draw.choice(("big", "little"))
            value = draw.choice(_NUMBERS) + draw.choice((0, 0, -1, 1))
            data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, order)  # type: ignore[arg-type]
        case 4:
            del data[at : at + draw.choice((1, 2, 4, 16, 200))]
        case 5:
            data[at:at] = draw.randbytes(draw.choice((1, 2, 4, 16)))
        case 6:
            part = data[at : at + draw.choice((4, 16, 64, 300))]
            data[at:at] = part * draw.choice((1, 2, 20))
        case 7:
            other = draw.choice(others)
            start = draw.randrange(len(other))
            data[at : at + 64] = other[start : start + draw.choice((8, 64, 400))]
        case 8:
            del data[draw.randrange(len(data)) :]
    if not data:
        data.append(0)


def _mend(data: bytearray) -> None:
    """A PNG's and an Ogg's checksums, where their chunks and pages still stand."""
    if data[:4] == b"\x89PNG":
        at = 8
        while at + 12 <= len(data):
            (size,) = struct.unpack_from(">I", data, at)
            if at + 12 + size > len(data):
                return
            struct.pack_into(">I", data, at + 8 + size, zlib.crc32(data[at + 4 : at + 8 + size]))
            at += 12 + size
    elif data[:4] == b"OggS":
        starts = [found.start() for found in re.finditer(b"OggS", data)] + [len(data)]
        for start, end in pairwise(starts):
            if end - start >= 27:
                data[start + 22 : start + 26] = bytes(4)
                struct.pack_into("<I", data, start + 22, hostile.crc(bytes(data[start:end]), 32, 0x04C11DB7))


@dataclass
class Fuzzed:
    """What a run met.

    outcomes   how often: ``accepted``, an error's code, ``killed`` (the decoder died), ``time`` (it took too long)
    broken     what the server's side owes and did not keep
    findings   what killed a decoder or took its time, with why
    """

    count: int = 0
    wall_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    findings: list[tuple[str, bytes]] = field(default_factory=list)
    slowest_s: float = 0.0
    decoder_bytes: int = 0
    server_bytes: int = 0

    def figures(self) -> list[Figure]:
        told = [figure(f"outcome: {name}", "", [times]) for name, times in sorted(self.outcomes.items())]
        return [
            figure("media", "", [self.count]),
            figure("media per second", "1/s", [self.count / self.wall_s]),
            *told,
            figure("crashes of the server, hangs, other errors", "", [len(self.broken)], at_most=0),
            figure("slowest medium, with its wait", "s", [self.slowest_s], at_most=_HANG_S),
            figure("most memory of a decoder", "MiB", [self.decoder_bytes / (1 << 20)], at_most=_MEMORY >> 20),
            figure("most memory of the server", "MiB", [self.server_bytes / (1 << 20)]),
        ]


def fuzz(count: int, seed: int, *, until: float | None = None, progress: Progress | None = None) -> Fuzzed:
    """Probe and decode that many media, or until that ``time.monotonic()``."""
    found, corpus, lock = Fuzzed(), seeds(), threading.Lock()
    task = None if progress is None else progress.add_task("media", total=count)
    numbers = iter(range(count))
    begin = time.monotonic()
    with MediaWall(SETTINGS) as wall:
        wall.probe(*corpus[0], wall.budget())
        host = wall.pid
        over = threading.Event()
        watch = threading.Thread(target=_watch_memory, args=(wall, found, over))
        watch.start()

        def work() -> None:
            while until is None or time.monotonic() < until:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                kind, data = damaged(corpus, seed, number)
                started = time.monotonic()
                outcome = _outcome(wall, kind, data, with_decode=number % _DECODE_EVERY == 0)
                taken = time.monotonic() - started
                with lock:
                    found.count += 1
                    found.slowest_s = max(found.slowest_s, taken)
                    name, _, why = outcome.partition(": ")
                    found.outcomes[name] += 1
                    if name in ("killed", "time"):
                        found.findings.append((f"{number} {kind} {outcome}", data))
                    elif name == "broken":
                        found.broken.append(f"{number} {kind}: {why}")
                    if taken > _HANG_S:
                        found.broken.append(f"{number} {kind}: no answer for {taken:.0f} s")
                if progress is not None and task is not None:
                    progress.advance(task)

        with ThreadPoolExecutor(2 * (SETTINGS.decoders or 1)) as threads:
            for worker in [threads.submit(work) for _ in range(2 * (SETTINGS.decoders or 1))]:
                worker.result()
        over.set()
        watch.join()
        if wall.pid != host:
            found.broken.append("the decoders' host ended")
    found.wall_s = time.monotonic() - begin
    found.server_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return found


def _outcome(wall: MediaWall, kind: Kind, data: bytes, *, with_decode: bool) -> str:
    try:
        wall.probe(kind, data, wall.budget())
        if with_decode:
            {"audio": wall.decode_audio, "image": wall.decode_image, "video": wall.decode_video}[kind](data)
    except (InvalidRequest, RequestTooLarge) as error:
        if "its decoder ended" in error.message:
            return f"killed: {error.message}"
        return "time" if "is not decoded after" in error.message else error.code
    except Exception as error:  # noqa: BLE001 — what no medium may cause
        return f"broken: {type(error).__name__}: {error}"
    return "accepted"


def _watch_memory(wall: MediaWall, found: Fuzzed, over: threading.Event) -> None:
    while not over.wait(0.1):
        for pid in _below(wall.pid or 0):
            found.decoder_bytes = max(found.decoder_bytes, _peak(pid))


def _below(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield int(child)
        yield from _below(int(child))


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    return int(peak[1]) << 10 if peak else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.media", description="Damaged media through the wall.")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    until = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    with Progress() as progress:
        found = fuzz(arguments.count, arguments.seed, until=until, progress=progress)
    for why, data in found.findings:
        print(why)
        if arguments.json is not None:
            name = f"found-{blake2s(data, digest_size=6).hexdigest()}"
            (arguments.json.parent / name).write_bytes(data)
    for why in found.broken:
        print(why)
    figures = found.figures()
    report(figures, arguments.json)
    sys.exit(0 if all(figure.met is not False for figure in figures) else 1)


if __name__ == "__main__":
    main()
