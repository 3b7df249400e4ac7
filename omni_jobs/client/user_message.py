"""``user_message``: puts media files and a text into one message of a chat completion."""

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def user_message(
    text: str | None = None,
    *,
    audio: Sequence[Path] = (),
    images: Sequence[Path] = (),
    videos: Sequence[Path] = (),
) -> dict[str, Any]:
    """Return an item of ``messages``: a user's media as base64, then the text. Raises OSError for an unreadable one."""
    parts: list[dict[str, Any]] = []
    for path in audio:
        sound = {"data": _base64(path)}
        kind = path.suffix.lstrip(".").lower()
        if kind in ("wav", "mp3", "flac", "ogg"):  # otherwise the server reads the format from the bytes
            sound["format"] = kind
        parts.append({"type": "input_audio", "input_audio": sound})
    parts += [{"type": "image_url", "image_url": {"url": _data_url(path, "image/png")}} for path in images]
    parts += [{"type": "video_url", "video_url": {"url": _data_url(path, "video/mp4")}} for path in videos]
    if text is not None:
        parts.append({"type": "text", "text": text})
    return {"role": "user", "content": parts}


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


def _data_url(path: Path, default: str) -> str:
    return f"data:{mimetypes.guess_type(path.name)[0] or default};base64,{_base64(path)}"
