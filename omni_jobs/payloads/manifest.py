"""The manifest of a payload, JSON in its file's metadata: which attempt of which stage run wrote the payload."""

import re
from dataclasses import dataclass
from typing import Final

from omni_jobs.errors import PayloadCorrupt, PayloadError
from omni_jobs.payloads.header_json import dump, load
from omni_jobs.payloads.refusals import brief
from omni_jobs.payloads.wire_limits import MAX_EXTENT

PAYLOAD_VERSION: Final = 1
_FIELDS: Final = ("version", "kind", "job_id", "stage", "attempt")
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}\Z")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The origin of a payload. Its fields are checked when it is written or read, not when it is made.

    kind     the kind of data in it: ``produces`` of the stage config
    job_id   the job
    stage    the stage that wrote it
    attempt  the attempt of the stage run that wrote it, from 1
    version  the version of the payload format
    """

    kind: str
    job_id: str
    stage: str
    attempt: int
    version: int = PAYLOAD_VERSION


def dump_manifest(manifest: Manifest) -> str:
    """Return the manifest as JSON. Raises PayloadError for a field that ``load_manifest`` would refuse."""
    _check(manifest)
    return dump({name: getattr(manifest, name) for name in _FIELDS}, "manifest")


def load_manifest(text: str) -> Manifest:
    """Return the manifest in its JSON, checked. Raises PayloadCorrupt or PayloadError naming the field."""
    fields = load(text, "manifest")
    if not isinstance(fields, dict) or "version" not in fields:
        raise PayloadCorrupt("missing", field="manifest.version")
    # Before the other fields, because another version may have others.
    _check_version(fields["version"])
    if different := fields.keys() ^ set(_FIELDS):
        name = min(different)
        raise PayloadCorrupt("missing" if name in _FIELDS else f"{brief(name)} is unknown", field="manifest")
    manifest = Manifest(**fields)
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    _check_version(manifest.version)
    for name in ("kind", "job_id", "stage"):
        text = getattr(manifest, name)
        if not isinstance(text, str) or not _IDENTIFIER.match(text):
            raise PayloadError(f"{brief(text)} is not an identifier", field=f"manifest.{name}")
    if type(manifest.attempt) is not int or not 1 <= manifest.attempt <= MAX_EXTENT:
        raise PayloadError(f"{brief(manifest.attempt)} is not an attempt", field="manifest.attempt")


def _check_version(version: object) -> None:
    if type(version) is not int or version != PAYLOAD_VERSION:
        raise PayloadError(f"{brief(version)}, only {PAYLOAD_VERSION} is known", field="manifest.version")
