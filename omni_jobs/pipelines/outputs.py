"""Outputs: what a job may ask for, each made of a stage's flow by an encoder.

output("audio")     its flow, formats and encoder: ours, or those of an entry point of ``omni_jobs.outputs``
"""

from collections.abc import Mapping
from dataclasses import dataclass

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.plugins import names, plugin

OUTPUTS = "omni_jobs.outputs"
"""Entry point group: a modality of another package → its ``Output``."""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A format in which an output can be encoded."""

    name: str  # as a job asks for it: mp3
    suffix: str  # of the artifact's name
    media_type: str


@dataclass(frozen=True, slots=True)
class Output:
    """A modality that jobs may ask for.

    modality  its name in a job's ``modalities`` and in a pipeline's ``outputs``
    flow      what it is made of
    formats   in which it can be encoded, the default first; none: it stands in the job's result and not in an artifact
    encoder   the function (tensors, values, format name) → bytes, as "module:function"
    artifact  the artifact's name without its suffix; None: the modality
    """

    modality: str
    flow: str
    formats: tuple[OutputFormat, ...] = ()
    encoder: str | None = None
    artifact: str | None = None

    def format(self, name: str | None) -> OutputFormat:
        """Return the format of this name; None: the default. Raises ConfigError for one that it has not."""
        for each in self.formats:
            if name in (None, each.name):
                return each
        known = ", ".join(each.name for each in self.formats) or "none"
        raise ConfigError(f"{self.modality} has no format {name!r:.60}; it has: {known}")

    def artifact_name(self, format: OutputFormat) -> str:
        """Return the name of the artifact in this format: ``audio.mp3``."""
        return f"{self.artifact or self.modality}.{format.suffix}"


_AUDIO = Output(
    "audio",
    flow="waveform",
    formats=(
        OutputFormat("wav", "wav", "audio/wav"),
        OutputFormat("flac", "flac", "audio/flac"),
        OutputFormat("mp3", "mp3", "audio/mpeg"),
        OutputFormat("opus", "opus", "audio/ogg"),
        OutputFormat("aac", "aac", "audio/aac"),
        OutputFormat("pcm", "pcm", "audio/pcm"),
    ),
    encoder="workers.encoders.audio:encode_audio",
)
_IMAGE = Output(
    "image",
    flow="pixels",
    formats=(
        OutputFormat("png", "png", "image/png"),
        OutputFormat("jpeg", "jpg", "image/jpeg"),
        OutputFormat("webp", "webp", "image/webp"),
    ),
    encoder="workers.encoders.image:encode_image",
)
_VIDEO = Output(
    "video",
    flow="pixels",
    formats=(OutputFormat("mp4", "mp4", "video/mp4"), OutputFormat("webm", "webm", "video/webm")),
    encoder="workers.encoders.video:encode_video",
)
_BY_MODALITY: Mapping[str, Output] = {each.modality: each for each in (Output("text", "text"), _AUDIO, _IMAGE, _VIDEO)}


def output(modality: str) -> Output:
    """Return the output of this modality. Raises ConfigError naming the known ones if there is none, PluginBroken."""
    ours = _BY_MODALITY.get(modality)
    if ours is not None:
        return ours
    if modality not in names(OUTPUTS):
        raise ConfigError(f"no such output {modality!r}; known: {', '.join(sorted({*_BY_MODALITY, *names(OUTPUTS)}))}")
    return plugin(OUTPUTS, modality, Output)
