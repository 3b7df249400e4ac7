"""The table of outputs: what a job may ask for, the flow each is made of, and the formats of its artifact.

    output("audio")   made of a waveform; wav, flac, mp3, opus, aac or pcm; its artifact is ``audio`` with a suffix

The table is made of the entry points of the group ``omni_jobs.outputs``: modality → an ``Output``. Ours stand there as
another package's do. An output names its encoder as text, because only a worker imports it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from omni_jobs.errors import ConfigError, PluginBroken
from omni_jobs.pipelines.plugins import plugin

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
    metadata  whether the encoder writes the job's seed into the file, and its id if a setting wants it there; it takes
              them as a fourth argument

    Formats, encoder and artifact go together: an output has all of them or none.
    """

    modality: str
    flow: str
    formats: tuple[OutputFormat, ...] = ()
    encoder: str | None = None
    artifact: str | None = None
    metadata: bool = False

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

    def format(self, name: str | None) -> OutputFormat:
        """Return the format of this name; None: the default. Raises ConfigError for one that it has not."""
        for each in self.formats:
            if name in (None, each.name):
                return each
        known = ", ".join(each.name for each in self.formats) or "none"
        raise ConfigError(f"{self.modality} has no format {name!r:.60}; it has: {known}")

    def artifact_name(self, format: OutputFormat) -> str:
        """Return the name of the artifact in this format: ``audio.mp3``."""
        return f"{self.artifact}{format.suffix}"


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
    metadata=True,
)

VIDEO = Output(
    "video",
    flow="pixels",
    formats=(OutputFormat("mp4", ".mp4", "video/mp4"), OutputFormat("webm", ".webm", "video/webm")),
    encoder="workers.encoders.video:encode_video",
    artifact="video",
)


def output(modality: str) -> Output:
    """Return the output of a modality. Raises ConfigError naming the known ones if none is installed, PluginBroken."""
    declared = plugin(OUTPUTS, modality, Output)
    if declared.modality != modality:
        raise PluginBroken(f"the entry point {modality!r} of {OUTPUTS} is the output {declared.modality!r}")
    return declared
