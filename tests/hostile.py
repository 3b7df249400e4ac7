"""The worst requests that were found, each as bytes made on the spot: for the tests and for ``benchmarks.hostile``."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import soundfile
from PIL import Image

from tests.oracles import samples

__all__ = [
    "BODIES",
    "BODY_BYTES",
    "BULKS",
    "HEADS",
    "MEDIA",
    "avi_index_bomb",
    "crc",
    "flac_silence",
    "gif_frames_bomb",
    "head_of_empty_lines",
    "head_of_headers",
    "head_of_one_header",
    "head_of_one_name",
    "head_of_url",
    "jpeg_scan_bomb",
    "mkv_length_lie",
    "mov_sound_bomb",
    "mp3_silence",
    "mp4_description_bomb",
    "mp4_edits_bomb",
    "mp4_fragment_bomb",
    "mp4_free_bomb",
    "mp4_index_bomb",
    "mp4_meta_bomb",
    "mpf_segment",
    "mpo_scan_bomb",
    "ogg_silence",
    "png_noise",
    "png_zip_bomb",
    "trailer",
    "wav_length_lie",
    "webp_large",
]


# Video


@lru_cache(maxsize=4)
def mp4_index_bomb(frames: int = 85_000_000) -> bytes:
    """An MP4 of 3 kB whose index claims ``frames`` frames of one byte: FFmpeg makes an entry of each."""
    data = bytearray(samples.video(4))
    stsz = data.index(b"stsz")
    struct.pack_into(">II", data, stsz + 8, 1, frames)  # each of one byte: no table is needed
    stts = data.index(b"stts")
    struct.pack_into(">II", data, stts + 12, frames, 512)
    stsc = data.index(b"stsc")
    struct.pack_into(">II", data, stsc + 8, 1, 1)
    struct.pack_into(">I", data, stsc + 16, frames)  # all in one chunk
    return bytes(data)


@lru_cache(maxsize=4)
def mp4_fragment_bomb(frames: int = 80_000_000) -> bytes:
    """A fragmented MP4 whose fragment claims ``frames`` samples, and describes none of them."""
    data = bytearray(samples.video(4, options={"movflags": "frag_keyframe+empty_moov+default_base_moof"}))
    trun = data.index(b"trun")
    struct.pack_into(">II", data, trun + 4, 0x000001, frames)  # a data offset, and nothing for a sample
    return bytes(data)


@lru_cache(maxsize=4)
def mp4_free_bomb(frames: int = 30_000_000) -> bytes:
    """The same in a box named ``free``: FFmpeg takes it for the index where there is no other."""
    return mp4_index_bomb(frames).replace(b"moov", b"free")


@lru_cache(maxsize=4)
def mp4_description_bomb(frames: int = 30_000_000) -> bytes:
    """The same with the table of sizes inside the description of the pictures."""
    boxes = _boxes(mp4_index_bomb(frames))
    sizes = _taken(boxes, b"stsz")
    description = _box_of(boxes, b"stsd")
    entry = description.content[12:] + _box(b"stsz", sizes)
    description.content = struct.pack(">III", 0, 1, 4 + len(entry)) + entry
    return _joined(boxes)


@lru_cache(maxsize=4)
def mp4_meta_bomb(frames: int = 30_000_000) -> bytes:
    """The same with the table of sizes in a ``meta`` box, behind words that look like a box over all of it."""
    boxes = _boxes(mp4_index_bomb(frames))
    inside = _box(b"hdlr", bytes(4) + b"mhlrmdir" + bytes(12)) + _box(b"stsz", _taken(boxes, b"stsz"))
    junk = bytes(4) + struct.pack(">I", 112 + len(inside)) + b"skip" + bytes(4)
    _box_of(boxes, b"stbl").boxes.append(_Box(b"meta", junk + inside))
    return _joined(boxes)


@lru_cache(maxsize=4)
def mp4_edits_bomb(edits: int = 3_000, frames: int = 5_000) -> bytes:
    """An MP4 that shows all its frames ``edits`` times: FFmpeg makes an entry of each for each time."""
    boxes = _boxes(samples.video(frames, width=32, height=32))
    table = _box_of(boxes, b"elst")
    table.content = struct.pack(">II", 0, edits) + table.content[8:20] * edits
    return _joined(boxes)


@lru_cache(maxsize=4)
def mov_sound_bomb(chunks: int = 64) -> bytes:
    """A QuickTime file whose plain sound has 2**31 - 1 samples in each chunk: FFmpeg makes an entry of 1,024."""
    boxes = _boxes(samples.video_with_sound())
    sound = [box for box in _box_of(boxes, b"moov").boxes if box.name == b"trak"][1].boxes
    _box_of(sound, b"stsc").content = struct.pack(">IIIII", 0, 1, 1, 0x7FFF_FFFF, 1)
    places = _box_of(sound, b"stco")
    places.content = struct.pack(">II", 0, chunks) + places.content[8:12] * chunks
    return _joined(boxes)


@dataclass
class _Box:
    """A box of an MP4: its content, or the boxes in it."""

    name: bytes
    content: bytes
    boxes: list[_Box] = field(default_factory=list)


def _boxes(data: bytes) -> list[_Box]:
    found, at = [], 0
    while at < len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + size]
        outer = name in (b"moov", b"trak", b"edts", b"mdia", b"minf", b"stbl")
        found.append(_Box(name, b"", _boxes(content)) if outer else _Box(name, content))
        at += size
    return found


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content


def _joined(boxes: list[_Box]) -> bytes:
    return b"".join(_box(box.name, box.content + _joined(box.boxes)) for box in boxes)


def _all(boxes: list[_Box]) -> Iterator[tuple[_Box, list[_Box]]]:
    for box in boxes:
        yield box, boxes
        yield from _all(box.boxes)


def _box_of(boxes: list[_Box], name: bytes) -> _Box:
    return next(box for box, _ in _all(boxes) if box.name == name)


def _taken(boxes: list[_Box], name: bytes) -> bytes:
    """The content of a box that is there no longer."""
    box, beside = next((box, beside) for box, beside in _all(boxes) if box.name == name)
    beside.remove(box)
    return box.content


@lru_cache(maxsize=4)
def mkv_length_lie() -> bytes:
    """A Matroska file whose segment and cluster say that they go on for 2**56 bytes."""
    data = bytearray(samples.video(4, format="matroska"))
    segment = data.index(b"\x18\x53\x80\x67")
    data[segment + 4 : segment + 12] = b"\x01\x7f\xff\xff\xff\xff\xff\xff"
    return bytes(data)


@lru_cache(maxsize=4)
def avi_index_bomb(entries: int = 2_000_000) -> bytes:
    """An AVI whose idx1 names its only frames ``entries`` times: FFmpeg makes an entry of each."""
    data = bytearray(samples.video(4, codec="mpeg4", format="avi"))
    at = data.index(b"idx1")
    entry = bytes(data[at + 8 : at + 24])
    data[at + 4 :] = struct.pack("<I", 16 * entries) + entry * entries
    struct.pack_into("<I", data, 4, len(data) - 8)
    return bytes(data)


# Images


@lru_cache(maxsize=4)
def jpeg_scan_bomb(scans: int = 2_000, side: int = 5_600) -> bytes:
    """A progressive JPEG whose last scan stands ``scans`` times: a decoder goes over all pixels for each."""
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:last] + data[last:end] * scans + data[end:]


@lru_cache(maxsize=4)
def mpo_scan_bomb(scans: int = 2_000, side: int = 5_600) -> bytes:
    """The same with a segment that says the file holds two pictures: Pillow opens it as another format."""
    data = jpeg_scan_bomb(scans, side)
    return data[:2] + mpf_segment() + data[2:]


def mpf_segment(pictures: int = 2) -> bytes:
    """An APP2 segment after CIPA DC-007, of pictures without a place or a size."""
    entries = bytes(16 * pictures)
    tags = struct.pack(">HHI4s", 0xB000, 7, 4, b"0100")  # the version
    tags += struct.pack(">HHII", 0xB001, 4, 1, pictures)
    tags += struct.pack(">HHII", 0xB002, 7, len(entries), 8 + 2 + 3 * 12 + 4)  # where the entries stand
    body = b"MPF\0MM\0*" + struct.pack(">IH", 8, 3) + tags + bytes(4) + entries
    return b"\xff\xe2" + struct.pack(">H", 2 + len(body)) + body


@lru_cache(maxsize=4)
def png_zip_bomb(size: int = 1 << 30) -> bytes:
    """A small PNG whose pixels' stream holds ``size`` bytes, far more than its header says."""
    packer = zlib.compressobj(9, wbits=-15)  # a full flush begins anew, so that what is packed once may stand often
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = (size & -(1 << 20)) % 65_521 << 16 | 1  # Adler-32 of zeros
    packed = b"\x78\xda" + block * (size >> 20) + packer.flush() + struct.pack(">I", checksum)
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


@lru_cache(maxsize=4)
def png_noise(side: int = 1_000) -> bytes:
    """Noise: a PNG as large as its pixels."""
    pixels = np.random.default_rng(7).integers(0, 256, (side, side, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    return file.getvalue()


@lru_cache(maxsize=4)
def gif_frames_bomb(frames: int = 20_000, side: int = 1_000) -> bytes:
    """A GIF of many large frames: who only wants its first must not go through them all."""
    file = io.BytesIO()
    pictures = [Image.new("P", (side, side), number) for number in (0, 1)]
    pictures[0].putpalette(bytes(range(256)) * 3)
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:])
    data = file.getvalue()
    last = data.rindex(b"\x21\xf9\x04")
    return data[:last] + data[last:-1] * frames + data[-1:]


@lru_cache(maxsize=4)
def webp_large(side: int = 5_600) -> bytes:
    """A lossless WebP of one colour: a few bytes for as many pixels as are taken."""
    file = io.BytesIO()
    Image.new("RGBA", (side, side), (1, 2, 3, 4)).save(file, "WEBP", lossless=True, method=0)
    return file.getvalue()


# Audio


@lru_cache(maxsize=8)
def flac_silence(seconds: int = 599, *, rate: int = 384_000, channels: int = 8) -> bytes:
    """Silence of 16 bits in the fewest bytes that FLAC has for it: 35 for 65,535 frames."""
    block, frames = 65_535, seconds * rate
    info = struct.pack(">HH", block, block) + bytes(6)
    info += (rate << 44 | (channels - 1) << 41 | 15 << 36 | frames).to_bytes(8, "big") + bytes(16)
    out = [b"fLaC\x80\x00\x00\x22" + info]
    for number in range(-(-frames // block)):
        length = min(block, frames - number * block)
        head = b"\xff\xf8" + bytes([0x70, (channels - 1) << 4 | 0b1000]) + _flac_number(number)
        head += struct.pack(">H", length - 1)
        frame = head + bytes([crc(head, 8, 0x07)]) + bytes(3 * channels)  # constant subframes of the value 0
        out.append(frame + struct.pack(">H", crc(frame, 16, 0x8005)))
    return b"".join(out)


def _flac_number(number: int) -> bytes:
    return chr(number).encode("utf-8", "surrogatepass")


@lru_cache(maxsize=8)
def ogg_silence(seconds: int = 599, *, rate: int = 192_000, channels: int = 8) -> bytes:
    """Vorbis silence: one packet of a short clip over and over, in pages of its own."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros((rate, channels), np.float32), rate, format="OGG", subtype="VORBIS")
    packets = list(_ogg_packets(file.getvalue()))
    heads, quiet = packets[:3], packets[len(packets) // 2]
    block = 1 << (heads[0][28] >> 4)  # frames of a long block; every packet after the first gives half of it
    count = seconds * rate // (block // 2)
    pages = [_ogg_page(0, 0, 2, heads[:1]), _ogg_page(1, 0, 0, heads[1:])]
    for start in range(0, count, 250):
        now = min(250, count - start)
        last = 4 if start + now == count else 0
        pages.append(_ogg_page(len(pages), (start + now - 1) * (block // 2), last, [quiet] * now))
    return b"".join(pages)


def _ogg_packets(data: bytes) -> Iterator[bytes]:
    at, packet = 0, b""
    while at < len(data):
        laces = data[at + 27 : at + 27 + data[at + 26]]
        at += 27 + len(laces)
        for lace in laces:
            packet += data[at : at + lace]
            at += lace
            if lace < 255:
                yield packet
                packet = b""


def _ogg_page(number: int, position: int, flags: int, packets: list[bytes]) -> bytes:
    laces = b"".join(b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255]) for packet in packets)
    if len(laces) > 255:
        raise ValueError("an Ogg page has 255 segments at most")
    head = b"OggS\x00" + struct.pack("<BqIIIB", flags, position, 7, number, 0, len(laces)) + laces
    page = head + b"".join(packets)
    return page[:22] + struct.pack("<I", crc(page, 32, 0x04C11DB7)) + page[26:]


@lru_cache(maxsize=8)
def mp3_silence(seconds: int = 7_200, *, rate: int = 8_000) -> bytes:
    """MPEG 2.5 frames of silence at the lowest bit rate, with no header that says how many."""
    file = io.BytesIO()
    soundfile.write(
        file, np.zeros(rate, np.float32), rate, format="MP3", bitrate_mode="CONSTANT", compression_level=0.99
    )
    data = file.getvalue()
    at = data.rindex(data[:2])
    frame = data[at:]
    return frame * (seconds * rate // 576)


@lru_cache(maxsize=4)
def wav_length_lie() -> bytes:
    """A WAV of half a second that says 1 GiB of samples follow."""
    data = bytearray(samples.wav(0.5))
    struct.pack_into("<I", data, data.index(b"data") + 4, 1 << 30)
    return bytes(data)


@lru_cache(maxsize=4)
def _crc_table(bits: int, polynomial: int) -> tuple[int, ...]:
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    table = []
    for value in range(256):
        rest = value << (bits - 8)
        for _ in range(8):
            rest = (rest << 1) ^ (polynomial if rest & top else 0)
        table.append(rest & mask)
    return tuple(table)


def crc(data: bytes, bits: int, polynomial: int) -> int:
    """The checksum of an Ogg page, a FLAC frame or its head."""
    table, mask, shift, rest = _crc_table(bits, polynomial), (1 << bits) - 1, bits - 8, 0
    for byte in data:
        rest = (rest << 8) & mask ^ table[(rest >> shift) ^ byte]
    return rest


# JSON: each of at most 63 MiB, and of a request's form as far as it goes

BODY_BYTES = 63 << 20


def _request(messages: bytes) -> bytes:
    return b'{"model":"echo","messages":' + messages + b"}"


def _user(content: bytes) -> bytes:
    return _request(b'[{"role":"user","content":' + content + b"}]")


def doubled_key(keys: int = 40_000) -> bytes:
    """An object whose last key is given twice."""
    names = [b'"%06d":1' % number for number in (*range(keys), keys - 1)]
    return b"{" + b",".join(names) + b"}"


def unknown_keys(keys: int = 900_000) -> bytes:
    return b"{" + b",".join(b'"%06d":1' % number for number in range(keys)) + b"}"


def wrong_items(item: bytes = b"1", number: int = 1_000_000) -> bytes:
    """Messages each of which is wrong."""
    return _request(b"[" + b",".join([item] * number) + b"]")


def wrong_parts(number: int = 999_000) -> bytes:
    return _user(b"[" + b",".join([b"1"] * number) + b"]")


def wrong_stops(number: int = 999_000) -> bytes:
    return b'{"model":"echo","messages":[{"role":"user","content":"x"}],"stop":[' + b",".join([b"1"] * number) + b"]}"


def long_medium(size: int = BODY_BYTES) -> bytes:
    """A picture that is none, in base64."""
    part = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,' + b"A" * (size - 200) + b'"}}'
    return _user(b"[" + part + b"]")


BODIES: Mapping[str, Callable[[], bytes]] = {
    "doubled_key": doubled_key,
    "doubled_key_of_few": lambda: doubled_key(200),
    "unknown_keys": unknown_keys,
    "unknown_keys_within_the_bound": lambda: unknown_keys(250),
    "wrong_messages": wrong_items,
    "wrong_messages_within_the_bound": lambda: wrong_items(number=49_000),
    "empty_messages": lambda: wrong_items(b"{}", 500_000),
    "messages_of_unknown_keys": lambda: wrong_items(unknown_keys(200), 240),
    "wrong_parts": wrong_parts,
    "wrong_parts_within_the_bound": lambda: wrong_parts(49_000),
    "wrong_stops": wrong_stops,
    "wrong_stops_within_the_bound": lambda: wrong_stops(49_000),
    "ones": lambda: wrong_items(number=BODY_BYTES // 2 - 100),
    "brackets": lambda: b"[" * BODY_BYTES,
    "braces": lambda: b'{"a":' * (BODY_BYTES // 5),
    "quotes": lambda: b'"' * BODY_BYTES,
    "backslashes": lambda: b'"' + b"\\" * (BODY_BYTES - 1),
    "spaces": lambda: _request(b" " * (BODY_BYTES - 100) + b"1"),
    "digits": lambda: _request(b"1" * (BODY_BYTES - 100)),
    "float": lambda: _request(b"0." + b"1" * (7 << 20)),
    "strings": lambda: _request(b"[" + b",".join([b'"' + b"a" * 1000 + b'"'] * 50_000) + b"]"),
    "escapes": lambda: _user(b'"' + b"\\u4e2d" * (BODY_BYTES // 6 - 50) + b'"'),
    "escaped_quotes": lambda: _user(b'"' + b'\\"' * (BODY_BYTES // 2 - 50) + b'"'),
    "long_text": lambda: _user(b'"' + b"a" * (BODY_BYTES - 100) + b'"'),
    "long_key": lambda: b'{"' + b"a" * (BODY_BYTES - 100) + b'":1}',
    "long_medium": long_medium,
}
"""The JSON bodies that cost the server most for what they are, by name; all are refused."""


# Heads


def head_of_headers(size: int) -> bytes:
    """A head of small headers that does not end."""
    return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * (size // 8)


def head_of_one_header(size: int) -> bytes:
    """A head whose last header does not end."""
    return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"b" * size


def head_of_one_name(size: int) -> bytes:
    """A head whose last header's name does not end."""
    return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-" + b"a" * size


def head_of_url(size: int) -> bytes:
    """A head whose first line does not end."""
    return b"GET /healthz?" + b"q" * size


def head_of_empty_lines(size: int) -> bytes:
    """Empty lines, which a server passes over before a request."""
    return b"\r\n" * (size // 2)


def trailer(size: int) -> bytes:
    """A submit whose chunked body is followed by a trailer that does not end."""
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-A: " + b"b" * size


HEADS: Mapping[str, Callable[[int], bytes]] = {
    "headers": head_of_headers,
    "one_header": head_of_one_header,
    "one_name": head_of_one_name,
    "url": head_of_url,
    "empty_lines": head_of_empty_lines,
    "trailer": trailer,
}
"""Heads, and a trailer, of so many bytes that do not end, by name."""


# Media in a request


def _of_media(kind: str, data: bytes, number: int = 1) -> bytes:
    """A job's body with a medium, ``number`` times."""
    inline = base64.b64encode(data).decode()
    part = {
        "audio": {"type": "input_audio", "input_audio": {"data": inline}},
        "image": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{inline}"}},
        "video": {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{inline}"}},
    }[kind]
    return json.dumps({"model": "qwen2_5_omni", "messages": [{"role": "user", "content": [part] * number}]}).encode()


MEDIA: Mapping[str, Callable[[], bytes]] = {
    "mp4_index_bomb": lambda: _of_media("video", mp4_index_bomb()),
    "mp4_fragment_bomb": lambda: _of_media("video", mp4_fragment_bomb()),
    "mp4_free_bomb": lambda: _of_media("video", mp4_free_bomb()),
    "mp4_description_bomb": lambda: _of_media("video", mp4_description_bomb()),
    "mp4_meta_bomb": lambda: _of_media("video", mp4_meta_bomb()),
    "mp4_edits_bomb": lambda: _of_media("video", mp4_edits_bomb()),
    "mov_sound_bomb": lambda: _of_media("video", mov_sound_bomb()),
    "mkv_length_lie": lambda: _of_media("video", mkv_length_lie()),
    "avi_index_bomb": lambda: _of_media("video", avi_index_bomb()),
    "jpeg_scan_bomb": lambda: _of_media("image", jpeg_scan_bomb()),
    "mpo_scan_bomb": lambda: _of_media("image", mpo_scan_bomb()),
    "png_zip_bomb": lambda: _of_media("image", png_zip_bomb()),
    "png_noise": lambda: _of_media("image", png_noise(3_500)),
    "gif_frames_bomb": lambda: _of_media("image", gif_frames_bomb()),
    "webp_large": lambda: _of_media("image", webp_large(), 32),
    "flac_silence": lambda: _of_media("audio", flac_silence()),
    "ogg_silence": lambda: _of_media("audio", ogg_silence(), 32),
    "mp3_silence": lambda: _of_media("audio", mp3_silence()),
    "wav_length_lie": lambda: _of_media("audio", wav_length_lie()),
}
"""Jobs' bodies with media that cost a decoder most for what they are, by name; some are taken."""


# Bulks


BULKS: Mapping[str, Callable[[], bytes]] = {
    "bad_lines": lambda: b"x\n" * 300_000,
    "empty_lines": lambda: b"\n" * BODY_BYTES,
    "one_endless_line": lambda: b"x" * (2 * BODY_BYTES),
    "lines_of_doubled_keys": lambda: (doubled_key(5_000) + b"\n") * 50,
    "lines_of_wrong_messages": lambda: (wrong_items(number=49_000) + b"\n") * 50,
}
"""Bulks that cost the server most for what they are, by name."""
