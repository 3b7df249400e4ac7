"""``RemotePrompt``: the engine prompt of a remote stage."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_jobs.pipelines.parameters import StageParameters


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A medium that is sent as a file of a form."""

    name: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class RemoteRecording:
    """A sound to transcribe.

    media       its number among the job's media; None: an earlier stage made it
    duration_s  in seconds; None: unknown
    field       its place in the request, for errors; None: an earlier stage made it
    """

    file: RemoteFile
    media: int | None = None
    duration_s: float | None = None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class RemotePrompt:
    """What a remote stage asks its server.

    parameters    of which those of the stage's endpoint are sent
    seed          the job's, 0 … 2**63-1
    messages      of chat and responses, in the form of chat completions
    text          to speak, or to make a picture of; not blank
    files         the pictures to start from
    recordings    to transcribe, one after the other: at least one
    voice         the job's; None: the server's choice
    audio_format  the format of the speech that the job wants; None: it wants none
    capture       whether a later stage takes the output
    tool_use      the fields of a chat completion that offer the model tools; empty: it is offered none
    """

    parameters: StageParameters
    seed: int
    messages: Sequence[Mapping[str, Any]] = ()
    text: str = ""
    files: Sequence[RemoteFile] = ()
    recordings: Sequence[RemoteRecording] = ()
    voice: str | None = None
    audio_format: str | None = None
    capture: bool = False
    tool_use: Mapping[str, Any] = dataclasses.field(default_factory=dict)
