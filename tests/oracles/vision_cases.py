"""Prompts of pictures and videos for Qwen2.5-VL: text alone, one picture, several, videos, and both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTextPrompt


@dataclass(frozen=True)
class VisionCase:
    """One prompt: its messages, and its media as vLLM takes them: PIL pictures, and (frames, metadata) of videos."""

    messages: Sequence[Mapping[str, Any]]
    media: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def prompt(self, text: str, *, capture: bool = True, **parameters: Any) -> OmniTextPrompt:
        """The engine prompt of these messages, whose rendered text is given."""
        merged = {"temperature": 0, **parameters}
        return OmniTextPrompt(text, self.media, ArParameters(**merged), seed=1, capture=capture)


def case(*parts: Any) -> VisionCase:
    """The case of one message with these parts in their order: texts, pictures, and videos as (frames, metadata)."""
    content: list[dict[str, Any]] = []
    media: dict[str, list[Any]] = {}
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
            continue
        kind = "video" if isinstance(part, tuple) else "image"
        content.append({"type": kind, "media": sum(map(len, media.values()))})
        media.setdefault(kind, []).append(part)
    return VisionCase([{"role": "user", "content": content}], media)


def _cases() -> dict[str, VisionCase]:
    noise = np.random.default_rng(0)

    def picture(width: int, height: int) -> Image.Image:
        return Image.fromarray(noise.integers(0, 255, (height, width, 3), dtype=np.uint8))

    def video(frames: int, width: int, height: int, fps: float = 2.0) -> tuple[Any, dict[str, Any]]:
        metadata = {
            "fps": fps,
            "total_num_frames": frames,
            "frames_indices": list(range(frames)),
            "duration": frames / fps,
            "do_sample_frames": False,
            "video_backend": "test",
        }
        return noise.integers(0, 255, (frames, height, width, 3), dtype=np.uint8), metadata

    return {
        "text": case("Hello there, 你好, مرحبا 🙂"),
        "picture": case(picture(160, 120), "What is it?"),
        "pictures": case(
            "Of these, ",
            picture(56, 56),
            picture(300, 60),
            " and ",
            picture(45, 200),
            "which is large?",
            picture(84, 84),
        ),
        "video": case(video(4, 168, 112), "What happens?"),
        "long video": case("This", video(12, 84, 56), "goes on, like", video(4, 56, 84, fps=1.0), "and then?"),
        "all": case(picture(100, 33), "Before", video(4, 112, 84), "and after", picture(64, 128), "What changed?"),
    }


CASES = _cases()
LENGTHS = [case("word " * n) for n in (1, 5, 14, 35)]
