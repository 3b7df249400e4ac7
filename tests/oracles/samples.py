"""Small media, made in memory: what a client would send."""

import base64
import io
import tempfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
from PIL import Image

__all__ = [
    "audio",
    "audio_part",
    "image",
    "image_part",
    "video",
    "video_part",
    "video_with_sound",
    "wav",
]


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


def audio_part(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def image_part(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def video_part(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(data).decode()}"}}
