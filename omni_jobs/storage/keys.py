"""Keys of the object store: their form, and where each object of a job stands.

    KIND/SHARD/OWNER/…                           any object; the pruner knows the kinds of owners
    jobs/SHARD/JOB/inputs|payloads|artifacts/…   those of a job

The shard is a hash of the owner's id. Without it all jobs of the moment would share the beginning of their keys,
because job ids begin with the time: S3 spreads its load by the beginnings of keys, and a local store has a directory
for each.
"""

import re
from typing import Final
from zlib import crc32

from omni_jobs.errors import StorageError

JOBS: Final = "jobs"  # the kind of owner that a job is
MAX_KEY_LENGTH: Final = 240  # a local store's file name holds most of a key, and 255 bytes at most

# A segment starts with a letter, a digit or "_", so that none is empty, "..", or hidden.
_SEGMENT: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"
KEY_PATTERN: Final = rf"^{_SEGMENT}(?:/{_SEGMENT})*$"
_KEY: Final = re.compile(KEY_PATTERN)
_PREFIX: Final = re.compile(rf"(?:{_SEGMENT}/)*(?:{_SEGMENT})?")


def owner_prefix(kind: str, owner: str) -> str:
    """Return the prefix of the keys of all objects of an owner: ``KIND/SHARD/OWNER/``."""
    return f"{kind}/{crc32(owner.encode()) & 0xFF:02x}/{owner}/"


def job_prefix(job_id: str) -> str:
    """Return the prefix of the keys of all objects of a job: ``jobs/SHARD/JOB/``."""
    return owner_prefix(JOBS, job_id)


def input_key(job_id: str, number: int) -> str:
    """Return the key under which intake stores the medium of this number in the job's request; SQL keeps it."""
    return f"{job_prefix(job_id)}inputs/{number}"


def payload_key(job_id: str, stage: str, attempt: int) -> str:
    """Return the key of the payload that an attempt stores. The payload ref in SQL says which attempt's is used."""
    return f"{job_prefix(job_id)}payloads/{stage}/{attempt}"


def snapshot_key(job_id: str, stage: str, attempt: int, number: int) -> str:
    """Return the key of the snapshot of this number that an attempt stores. SQL names the one that is used."""
    return f"{payload_key(job_id, stage, attempt)}-snapshot-{number}"


def artifact_key(job_id: str, stage: str, attempt: int, name: str) -> str:
    """Return the key of an artifact that an attempt stores; the put checks it, not this function."""
    return f"{job_prefix(job_id)}artifacts/{stage}/{attempt}/{name}"


def check_key(key: str) -> str:
    """Return ``key`` as it is. Raises StorageError if it is too long or a segment is not a plain file name."""
    if len(key) > MAX_KEY_LENGTH or not _KEY.fullmatch(key):
        raise StorageError(f"{key[:80]!a} is not a key of the object store", field="key")
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` as it is; it may be "". Raises StorageError unless a key can begin with it."""
    if len(prefix) > MAX_KEY_LENGTH or not _PREFIX.fullmatch(prefix):
        raise StorageError(f"{prefix[:80]!a} is not the beginning of a key", field="key")
    return prefix
