"""The table of outputs: what a job may ask for, the flow each is made of, and the formats of its artifact.

    output("audio")   made of a waveform; wav, flac, mp3, opus, aac or pcm; its artifact is ``audio`` with a suffix
    outputs()         all of them by modality

The table is made of the entry points of the group ``omni_jobs.outputs``: modality → an ``Output``. Ours stand there as
another package's do. An output names its encoder as text, because only a worker imports it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from omni_jobs.errors import ConfigError

OUTPUTS = "omni_jobs.outputs"
"""Entry point group: modality → its ``Output``."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SUFFIX = re.compile(r"\.[a-z0-9]+")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format of an output's artifact.

    name        by which a job asks for it, such as "mp3"
    suffix      of the artifact's name, with its dot: ".mp3"
    media_type  with which the artifact is served: "audio/mpeg"
    """

    name: str
    suffix: str
    media_type: str

    def __post_init__(self) -> None:
        """Raise ConfigError for a name or suffix of other characters than a-z and 0-9, or no media type."""
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"a format's name is of a-z, 0-9 and _, not {self.name!r}", field="name")
        if not _SUFFIX.fullmatch(self.suffix):
            raise ConfigError(f"a format's suffix is like '.wav', not {self.suffix!r}", field="suffix")
        if self.media_type.count("/") != 1 or self.media_type.split() != [self.media_type]:
            raise ConfigError(f"a media type is like 'audio/wav', not {self.media_type!r}", field="media_type")


@dataclass(frozen=True, slots=True)
class Output:
    """What a job may ask for.

    modality  its name: "audio"
    flow      the flow it is made of: "waveform"
    formats   of its artifact, the default first; none: the output stands in the job's result, as text does
    encoder   the function that makes the artifact's bytes, as "module:function"; its form: ``workers.encoders``
    artifact  the artifact's name without its suffix: "audio"

    Formats, encoder and artifact go together: an output has all of them or none.
    """

    modality: str
    flow: str
    formats: tuple[OutputFormat, ...] = ()
    encoder: str | None = None
    artifact: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError, which names the field, for names that are wrong, missing or doubled."""
        for field, name in (("modality", self.modality), ("flow", self.flow), ("artifact", self.artifact)):
            if name is not None and not _NAME.fullmatch(name):
                raise ConfigError(f"an output's {field} is of a-z, 0-9 and _, not {name!r}", field=field)
        if len({bool(self.formats), self.encoder is not None, self.artifact is not None}) > 1:
            raise ConfigError("an output has formats, an encoder and an artifact, or none of them", field="formats")
        if self.encoder is not None and not _OBJECT.fullmatch(self.encoder):
            raise ConfigError(f"an encoder is like 'module:function', not {self.encoder!r}", field="encoder")
        for attribute in ("name", "suffix"):
            if len({getattr(format, attribute) for format in self.formats}) < len(self.formats):
                raise ConfigError(f"two formats of {self.modality} have one {attribute}", field="formats")


TEXT = Output("text", flow="text")

AUDIO = Output(
    "audio",
    flow="waveform",
    formats=(
        OutputFormat("wav", ".wav", "audio/wav"),
        OutputFormat("flac", ".flac", "audio/flac"),
        OutputFormat("mp3", ".mp3", "audio/mpeg"),
        OutputFormat("opus", ".opus", "audio/ogg"),
        OutputFormat("aac", ".aac", "audio/aac"),
        OutputFormat("pcm", ".pcm", "audio/pcm"),
    ),
    encoder="workers.encoders.audio:encode_audio",
    artifact="audio",
)

IMAGE = Output(
    "image",
    flow="pixels",
    formats=(
        OutputFormat("png", ".png", "image/png"),
        OutputFormat("jpeg", ".jpg", "image/jpeg"),
        OutputFormat("webp", ".webp", "image/webp"),
    ),
    encoder="workers.encoders.image:encode_image",
    artifact="image",
)

VIDEO = Output(
    "video",
    flow="pixels",
    formats=(OutputFormat("mp4", ".mp4", "video/mp4"), OutputFormat("webm", ".webm", "video/webm")),
    encoder="workers.encoders.video:encode_video",
    artifact="video",
)


def output(modality: str) -> Output:
    """Return the output of a modality.

    Raises ConfigError where none is installed, where two are, or where its entry point does not load, is no Output, or
    is the output of another modality.
    """
    entries = _entries(tuple(sys.path))
    if modality not in entries:
        raise ConfigError(f"no output {modality!r} in {OUTPUTS}; installed: {', '.join(sorted(entries)) or 'none'}")
    return _loaded(modality, entries[modality])


def outputs() -> Mapping[str, Output]:
    """Return all outputs by modality, in the order of their names. Raises ConfigError as ``output`` does for each."""
    entries = _entries(tuple(sys.path))
    return {modality: _loaded(modality, entries[modality]) for modality in sorted(entries)}


@lru_cache(maxsize=4)
def _entries(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points by name, read once for each ``path`` (sys.path), because that takes milliseconds."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=OUTPUTS):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def _loaded(modality: str, entries: tuple[EntryPoint, ...]) -> Output:
    if len(entries) > 1:
        values = " and ".join(sorted(entry.value for entry in entries))
        raise ConfigError(f"{len(entries)} entry points of {OUTPUTS} are named {modality!r}: {values}")
    try:
        declared = entries[0].load()
    except Exception as error:  # another package's code runs here
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise ConfigError(f"the entry point {modality!r} of {OUTPUTS} cannot be loaded: {reason}") from error
    if not isinstance(declared, Output):
        raise ConfigError(f"the entry point {modality!r} of {OUTPUTS} is no Output")
    if declared.modality != modality:
        raise ConfigError(f"the entry point {modality!r} of {OUTPUTS} is the output {declared.modality!r}")
    return declared
