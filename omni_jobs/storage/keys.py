"""Where everything of a job stands in the object store, and what a key may look like.

    jobs/SHARD/JOB/inputs|payloads|artifacts/…

Job ids begin with the time, and S3 spreads its load by the beginnings of keys: without the shard
in front all jobs of the moment would be one hot spot, and one directory of a local store.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

from omni_jobs.errors import StorageError

__all__ = [
    "MAX_KEY_LENGTH",
    "artifact_key",
    "check_key",
    "check_prefix",
    "input_key",
    "job_prefix",
    "payload_key",
]

MAX_KEY_LENGTH: Final = 240  # a local store's file names hold most of it, and 255 bytes at most

# Segments start with a letter, a digit or "_": no "..", no hidden file, no empty one.
_SEGMENT: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*\Z")
_PREFIX: Final = re.compile(rf"(?:{_SEGMENT}/)*(?:{_SEGMENT})?\Z")


def job_prefix(job_id: str) -> str:
    """Everything of one job."""
    return f"jobs/{crc32(job_id.encode()) & 0xFF:02x}/{job_id}/"


def input_key(job_id: str, number: int) -> str:
    """A medium of the job's request."""
    return f"{job_prefix(job_id)}inputs/{number}"


def payload_key(job_id: str, stage: str, attempt: int) -> str:
    """What an attempt hands on; the commit in SQL selects which attempt counts."""
    return f"{job_prefix(job_id)}payloads/{stage}/{attempt}"


def artifact_key(job_id: str, stage: str, attempt: int, name: str) -> str:
    """An output the user may fetch."""
    return f"{job_prefix(job_id)}artifacts/{stage}/{attempt}/{name}"


def check_key(key: str) -> str:
    """The key. Raises StorageError for one that no store takes."""
    if len(key) > MAX_KEY_LENGTH or not _KEY.match(key):
        raise StorageError(f"{key[:80]!a} is not a key of the object store", field="key")
    return key


def check_prefix(prefix: str) -> str:
    """The beginning of keys; "" is all of them. Raises StorageError."""
    if len(prefix) > MAX_KEY_LENGTH or not _PREFIX.match(prefix):
        raise StorageError(f"{prefix[:80]!a} is not the beginning of a key", field="key")
    return prefix
