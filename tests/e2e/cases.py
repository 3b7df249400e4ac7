"""The prompts of the end-to-end tests, as a client sends them and as the oracle takes them."""

import base64
import io
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import av
import numpy as np
from PIL import Image

from tests.oracles.reference import Reference, ReferenceResult

THINKER_TOKENS = 24
TALKER_TOKENS = 48


@dataclass(frozen=True)
class Case:
    """One prompt: parts in order, each text or one encoded medium."""

    name: str
    text: str
    media: Sequence[tuple[str, bytes]] = ()  # (audio | image | video, encoded)
    system: str | None = None
    voice: str = "Chelsie"
    seed: int = 0
    modalities: Sequence[str] = ("text", "audio")
    body: Mapping[str, Any] = field(default_factory=dict)  # what else the client sends

    def request(self) -> dict[str, Any]:
        """The job's body: greedy in both AR stages, Transformers' own repetition penalty."""
        content = [_PART[kind](data) for kind, data in self.media]
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [*content, {"type": "text", "text": self.text}]},
        ]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        request: dict[str, Any] = {
            "model": "qwen2_5_omni",
            "messages": messages,
            "modalities": list(self.modalities),
            "seed": self.seed,
            "return_token_ids": True,
            "stages": {"thinker": {"temperature": 0, "max_tokens": THINKER_TOKENS}},
        }
        if "audio" in self.modalities:
            request["audio"] = {"voice": self.voice, "format": "wav"}
            request["stages"]["talker"] = {
                "temperature": 0,
                "top_k": 0,
                "top_p": 1.0,
                "repetition_penalty": 1.05,
                "max_tokens": TALKER_TOKENS,
            }
        return {**request, **self.body}

    def expected(self, reference: Reference) -> ReferenceResult:
        parts: list[dict[str, Any]] = [{"type": kind, "media": n} for n, (kind, _) in enumerate(self.media)]
        messages: list[dict[str, Any]] = [{"role": "user", "content": [*parts, {"type": "text", "text": self.text}]}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        return reference.generate(
            messages,
            [data for _, data in self.media],
            modalities=self.modalities,
            voice=self.voice,
            thinker_max_tokens=THINKER_TOKENS,
            talker_max_tokens=TALKER_TOKENS,
            seed=self.seed,
        )


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


_PART = {
    "audio": lambda data: {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"},
    },
    "image": lambda data: {"type": "image_url", "image_url": {"url": data_url("image/png", data)}},
    "video": lambda data: {"type": "video_url", "video_url": {"url": data_url("video/mp4", data)}},
}


def wav(seconds: float, *, pitch: float = 220.0, rate: int = 16_000) -> bytes:
    """A rising tone, 16-bit mono."""
    time = np.arange(int(seconds * rate)) / rate
    samples = np.sin(2 * np.pi * (pitch + 180.0 * time) * time) * 12_000
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def png(width: int, height: int, *, hue: int = 0) -> bytes:
    """Two crossing gradients."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 255 // width, y * 255 // height, np.full_like(x, hue)], axis=-1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def mp4(seconds: float, *, width: int = 64, height: int = 64, rate: int = 8) -> bytes:
    """A square that wanders over a grey ground."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(rate))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for n in range(int(seconds * rate)):
            pixels = np.full((height, width, 3), 90, np.uint8)
            left = (n * 5) % (width - 16)
            pixels[16:32, left : left + 16] = (220, 40, 10 * n % 256)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def cases() -> list[Case]:
    """Text, audio, image, audio with image, video; both voices; several scripts."""
    return [
        Case("text", "Tell me about the sea. 海是什么？", seed=1),
        Case("audio", "ما هذا الصوت؟", [("audio", wav(1.3))], seed=2),
        Case("image", "What is in the picture? 🖼️", [("image", png(84, 56))], voice="Ethan", seed=3),
        Case("audio and image", "Both.", [("audio", wav(0.7, pitch=440)), ("image", png(56, 112, hue=200))], seed=4),
        Case("video", "Was geschieht hier?", [("video", mp4(2.0))], seed=5),
    ]


def sixteen() -> list[Case]:
    """Sixteen jobs of different kinds, lengths, voices and seeds."""
    varied = [
        Case(
            f"{case.name} {round}",
            f"{case.text} {'again ' * (round * 3)}",
            case.media,
            voice=("Chelsie", "Ethan")[round % 2],
            seed=case.seed + 10 * round,
        )
        for round in range(3)
        for case in cases()
    ]
    return [*varied, Case("with a system message", "Hi", system="You are a very terse machine.", seed=99)]
