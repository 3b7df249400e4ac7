"""The manifest of a backup, and the places of its parts."""

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from xxhash import xxh3_128

from omni_jobs.errors import Conflict, NotFound
from omni_jobs.files import new_file, sync_directory
from omni_jobs.storage import ObjectRef
from omni_jobs.storage.object_store import STREAM_BYTES, digest_text

OBJECT_REFS: Final = "objects.jsonl"
OBJECTS: Final = "objects"
_MANIFEST: Final = "backup.json"

OnProgress = Callable[[str, int, int | None], object]
"""Is called with what is under way, how much of it is done, and of how much; None: that is not known."""


class BackupManifest(BaseModel):
    """What a backup is. Written last, as ``backup.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["omni-jobs backup 1"] = "omni-jobs backup 1"
    made_at: datetime  # when its database was as it is
    build: str  # the version of omni-jobs that made it
    database: Literal["sqlite", "postgresql"]
    revision: str  # of the schema
    jobs: int
    database_file: str
    database_bytes: int
    database_digest: str = Field(pattern=r"^xxh3:[0-9a-f]{32}$")
    objects: int  # that the database refers to
    object_bytes: int
    has_objects: bool  # it holds the objects themselves
    missing: list[str]  # keys of those that were not in the store; without objects none was looked for

    def write(self, directory: Path) -> None:
        """Write it, whole or not at all."""
        with new_file(directory / _MANIFEST) as file:
            file.write(self.model_dump_json(indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(directory)

    @classmethod
    def read(cls, directory: Path) -> "BackupManifest":
        """Read that of a backup. Raises NotFound without one, and Conflict for one that this build cannot read."""
        try:
            text = (directory / _MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(
                f"{directory} holds no backup, or one that was not finished: it has no {_MANIFEST}"
            ) from None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            (first, *_) = error.errors()
            where = ".".join(map(str, first["loc"])) or "its text"
            raise Conflict(
                f"{directory / _MANIFEST} is not what this version writes: {where}: {first['msg']}"
            ) from None


def object_refs(directory: Path) -> Iterator[ObjectRef]:
    """Yield the object refs of a backup. Raises Conflict for a line that is none."""
    with (directory / OBJECT_REFS).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield ObjectRef.model_validate_json(line)
            except ValidationError:
                raise Conflict(f"{directory / OBJECT_REFS} is damaged: line {number} is no object's") from None


def digest_of(path: Path) -> str:
    """Return the digest of a file, as an object ref has it."""
    digest = xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(STREAM_BYTES):
            digest.update(piece)
    return digest_text(digest)
