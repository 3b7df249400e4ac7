"""Small media, made in memory: what a client would send."""

import base64
import io
import struct
import tempfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
from PIL import Image

__all__ = [
    "DISPLAY_P3",
    "audio",
    "audio_part",
    "image",
    "image_part",
    "mirrored",
    "sound",
    "video",
    "video_part",
    "video_with_sound",
    "wav",
    "with_matrix",
]


def rgb_profile(red: tuple[int, int, int], green: tuple[int, int, int], blue: tuple[int, int, int]) -> bytes:
    """An ICC profile of these primaries, X, Y and Z in units of 1/65,536 for the white D50, with the curve of sRGB."""
    tags = {
        b"desc": b"mluc" + bytes(4) + struct.pack(">II2s2sII", 1, 12, b"en", b"US", 8, 28) + "test".encode("utf-16-be"),
        b"wtpt": b"XYZ " + bytes(4) + struct.pack(">3i", 63190, 65536, 54061),
        b"rXYZ": b"XYZ " + bytes(4) + struct.pack(">3i", *red),
        b"gXYZ": b"XYZ " + bytes(4) + struct.pack(">3i", *green),
        b"bXYZ": b"XYZ " + bytes(4) + struct.pack(">3i", *blue),
    }
    curve = b"para" + bytes(4) + struct.pack(">HH5i", 3, 0, 157286, 62119, 3417, 5072, 2651)
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    table, body = b"", b""
    begin = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        content += bytes(-len(content) % 4)
        table += name + struct.pack(">II", begin + len(body), len(content))
        body += content
    head = struct.pack(">I4sI4s4s4s", begin + len(body), bytes(4), 0x04000000, b"mntr", b"RGB ", b"XYZ ")
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3i", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body


DISPLAY_P3 = rgb_profile((33759, 15807, -69), (19135, 45367, 2745), (10296, 4363, 51385))
"""The profile of displays like those of phones and laptops."""


def wav(seconds: float = 0.5, *, rate: int = 16_000, channels: int = 1) -> bytes:
    """A sine of 440 Hz at half of full scale, 16 bits."""
    return audio(seconds, rate=rate, channels=channels)


def audio(
    seconds: float = 0.5, *, rate: int = 16_000, channels: int = 1, format: str = "WAV", subtype: str | None = None
) -> bytes:
    samples = 0.5 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate)
    file = io.BytesIO()
    soundfile.write(file, np.repeat(samples[:, None], channels, axis=1), rate, format=format, subtype=subtype)
    return file.getvalue()


def sound(
    codec: str,
    *,
    format: str,
    seconds: float = 0.5,
    rate: int = 48_000,
    layout: str = "mono",
    bit_rate: int | None = None,
    options: dict[str, str] | None = None,
) -> bytes:
    """A sine of 440 Hz at half of full scale in all channels, as FFmpeg writes it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip"
        with av.open(str(path), "w", format=format, options=options or {}) as container:
            track = container.add_stream(codec, rate=rate, layout=layout)
            if bit_rate is not None:
                track.bit_rate = bit_rate
            wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate)
            channels = av.AudioLayout(layout).nb_channels
            resampler = av.AudioResampler(track.codec_context.format, layout, rate)
            for begin in range(0, len(wave), 960):
                block = np.repeat(wave[begin : begin + 960].astype(np.float32), channels)[None]
                frame = av.AudioFrame.from_ndarray(block, format="flt", layout=layout)
                frame.sample_rate, frame.pts = rate, begin
                for each in resampler.resample(frame):
                    container.mux(track.encode(each))
            container.mux(track.encode(None))
        return path.read_bytes()


def image(width: int = 64, height: int = 48, *, format: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    """A gradient, so that no two pixels in a row are the same."""
    ramp = np.linspace(0, 255, width, dtype=np.uint8)[None, :].repeat(height, axis=0)
    file = io.BytesIO()
    Image.fromarray(ramp).convert(mode).save(file, format, **options)
    return file.getvalue()


def video(
    frames: int = 10,
    *,
    fps: int = 10,
    width: int = 64,
    height: int = 48,
    codec: str = "mpeg4",
    format: str = "mp4",
    options: dict[str, str] | None = None,
) -> bytes:
    """Frame n of N is grey with value 240 n / N."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip"
        with av.open(str(path), "w", format=format, options=options or {}) as container:
            stream = container.add_stream(codec, rate=fps)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for number in range(frames):
                grey = np.full((height, width, 3), 240 * number // frames, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
            container.mux(stream.encode(None))
        return path.read_bytes()


def video_with_sound(
    frames: int = 4,
    blocks: int = 4,
    *,
    sound: str = "pcm_s16le",
    codec: str = "mpeg4",
    format: str = "mov",
    options: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
) -> bytes:
    """Black pictures, ten a second, and after them ``blocks`` of 1,024 samples of silence at 48 kHz."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip"
        with av.open(str(path), "w", format=format, options=options or {}) as container:
            container.metadata.update(metadata or {})
            picture = container.add_stream(codec, rate=10)
            picture.width, picture.height, picture.pix_fmt = 64, 48, "yuv420p"
            track = container.add_stream(sound, rate=48_000, layout="mono")
            for _ in range(frames):
                picture_now = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
                container.mux(picture.encode(picture_now))
            for _ in range(blocks):
                silence = av.AudioFrame(format=track.codec_context.format.name, layout="mono", samples=1024)
                for plane in silence.planes:
                    plane.update(bytes(plane.buffer_size))
                silence.sample_rate = 48_000
                container.mux(track.encode(silence))
            for stream in (picture, track):
                container.mux(stream.encode(None))
        return path.read_bytes()


def mirrored(mp4: bytes) -> bytes:
    """An MP4 whose display matrix shows left what is right."""
    return with_matrix(mp4, -1, 0, 0, 1)


def with_matrix(mp4: bytes, a: int, b: int, c: int, d: int) -> bytes:
    """An MP4 whose display matrix moves row y and column x to column a x + c y and row b x + d y."""
    data = bytearray(mp4)
    at = data.index(b"tkhd") + 4 + 40  # version 0: the matrix
    struct.pack_into(">9i", data, at, a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    return bytes(data)


def audio_part(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def image_part(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def video_part(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(data).decode()}"}}
