"""``RequestFiles``: the files of a directory as the requests of a bulk, one job each."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

_KINDS = {"audio": "audio", "image": "images", "video": "videos"}  # of a file → the parameter of user_message
_LARGEST_BYTES = 1 << 30  # of a file: each is read whole, and no server takes more


@dataclass(frozen=True)
class RequestFiles:
    """The requests of a directory: a line for each file, in the order of their names, read when its turn comes.

    A ``.json`` file is a whole request. A sound, a picture or a video is the user's message, after which ``text``
    stands, to the pipeline ``model``. Hidden files and what lies in subdirectories are left out.
    """

    files: Sequence[Path]
    model: str | None
    text: str | None

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines. Raises OSError for a file that is gone or cannot be read."""
        for file in self.files:
            yield _whole_request(file) if _is_request(file) else json.dumps(self._request_about(file)).encode()

    def _request_about(self, file: Path) -> dict[str, Any]:
        from omni_jobs.client import user_message

        return {"model": self.model, "messages": [user_message(self.text, **{_kind_of(file): [file]})]}


def files_in(directory: Path) -> Sequence[Path]:
    """Return the files of a directory that are not hidden, by their names. Raises BadParameter if it has none."""
    files = [path for path in sorted(directory.iterdir()) if path.is_file() and not path.name.startswith(".")]
    if not files:
        raise typer.BadParameter(f"'{directory}' has no file")
    return files


def check_request_files(files: Sequence[Path]) -> bool:
    """Return whether one of the files is no whole request, so that it needs a pipeline.

    Raises BadParameter for a file that is neither a request nor a medium, or too large, before anything is sent.
    """
    for file in files:
        if not _is_request(file) and _kind_of(file) not in _KINDS.values():
            raise typer.BadParameter(f"'{file}' is neither a request (.json) nor a sound, a picture or a video")
        if file.stat().st_size > _LARGEST_BYTES:
            raise typer.BadParameter(f"'{file}' is larger than a request may be")
    return not all(map(_is_request, files))


def _is_request(file: Path) -> bool:
    return file.suffix.lower() == ".json"


def _kind_of(file: Path) -> str:
    """Return the parameter of ``user_message`` that takes the file; empty if none does."""
    kind, _, _ = (mimetypes.guess_type(file.name)[0] or "").partition("/")
    return _KINDS.get(kind, "")


def _whole_request(file: Path) -> bytes:
    """Return the JSON of a file on one line. In JSON no string has a line end, so that a space says the same.

    A file without anything is ``null``, because an empty line would have no answer.
    """
    return file.read_bytes().replace(b"\r", b" ").replace(b"\n", b" ").strip() or b"null"
