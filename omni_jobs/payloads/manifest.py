"""Whose payload it is, as an object and as the JSON in the file's metadata."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from omni_jobs.errors import PayloadCorrupt, PayloadError
from omni_jobs.payloads.refusals import shown
from omni_jobs.payloads.strict_json import load
from omni_jobs.payloads.wire_limits import MAX_EXTENT

__all__ = ["PAYLOAD_VERSION", "Manifest", "dump_manifest", "load_manifest"]

PAYLOAD_VERSION: Final = 1
_FIELDS: Final = frozenset({"version", "kind", "job_id", "stage", "attempt"})
_IDENTIFIER_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}"
_IDENTIFIER: Final = re.compile(rf"{_IDENTIFIER_PATTERN}\Z")
_AS_WE_WRITE_IT: Final = re.compile(
    rf'{{"version":{PAYLOAD_VERSION},"kind":"({_IDENTIFIER_PATTERN})","job_id":"({_IDENTIFIER_PATTERN})",'
    rf'"stage":"({_IDENTIFIER_PATTERN})","attempt":(0|[1-9][0-9]{{0,17}})}}\Z'
)


class Manifest(NamedTuple):
    """Whose payload it is.

    kind     what flows: the stage config's ``produces``
    attempt  the attempt of the stage run that wrote it, from 1
    """

    kind: str
    job_id: str
    stage: str
    attempt: int
    version: int = PAYLOAD_VERSION


def dump_manifest(manifest: Manifest) -> str:
    """Raises PayloadError for what a reader would refuse."""
    _check(manifest)  # what is an identifier needs no escapes
    kind, job_id, stage, attempt, version = manifest
    return f'{{"version":{version},"kind":"{kind}","job_id":"{job_id}","stage":"{stage}","attempt":{attempt}}}'


def load_manifest(text: str) -> Manifest:
    """Raises PayloadCorrupt."""
    if ours := _AS_WE_WRITE_IT.match(text):  # all is checked, in a third of the time
        kind, job_id, stage, attempt = ours.groups()
        return Manifest(kind, job_id, stage, int(attempt))
    found = load(text, "manifest")
    if not isinstance(found, dict) or "version" not in found:
        raise PayloadCorrupt("missing", field="manifest.version")
    # First of all: another version may have other fields.
    _check_version(found["version"])
    if found.keys() != _FIELDS:
        name = min(found.keys() ^ _FIELDS)
        raise PayloadCorrupt("missing" if name in _FIELDS else f"{shown(name)} is unknown", field="manifest")
    manifest = Manifest(**found)
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    _check_version(manifest.version)
    for name, text in (("kind", manifest.kind), ("job_id", manifest.job_id), ("stage", manifest.stage)):
        if not isinstance(text, str) or not _IDENTIFIER.match(text):
            raise PayloadError(f"{shown(text)} is not an identifier", field=f"manifest.{name}")
    if type(manifest.attempt) is not int or not 0 <= manifest.attempt <= MAX_EXTENT:
        raise PayloadError(f"{shown(manifest.attempt)} is not an attempt", field="manifest.attempt")


def _check_version(version: object) -> None:
    if type(version) is not int or version != PAYLOAD_VERSION:
        raise PayloadError(f"{shown(version)}, only {PAYLOAD_VERSION} is known", field="manifest.version")
