"""What passes between a stage, its runner and the stages around it.

Everything here is a plain value: the queue's executor and the offline entry point
pass the same ones, so both give the same results. What every stage run has is a tuple:
it is made in half the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from omni_jobs.pipelines.parameters import ArParameters, DiffusionParameters, EchoParameters, StageParameters

if TYPE_CHECKING:
    import torch

    from omni_jobs.media.wall import MediaWall
    from omni_jobs.payloads import Payload
    from workers.runners.ar.capture_budget import Reservation

__all__ = [
    "WAITING",
    "Artifact",
    "CodecPrompt",
    "EchoPrompt",
    "EnginePrompt",
    "OmniModelRunnerOutput",
    "OmniTextPrompt",
    "OmniTokensPrompt",
    "Progress",
    "StageInput",
    "TensorTree",
]

_NOTHING: Mapping[str, Any] = MappingProxyType({})

TensorTree: TypeAlias = "torch.Tensor | list[torch.Tensor] | dict[str, torch.Tensor]"
"""The kinds of multimodal output a stage may yield per request."""


class StageInput(NamedTuple):
    """One job at one stage: the values from which an input processor makes the engine's prompt."""

    job_id: str
    request: Mapping[str, Any]  # the admitted request (omni_jobs.requests), media by number
    media: Sequence[bytes | memoryview]  # the request's media, in the order of their numbers
    upstream: Mapping[str, Payload]  # stage name → its payload; only the stage's ``inputs``
    parameters: StageParameters  # of the stage's kind; merged: the stage config's under the job's
    seed: int  # 0 … 2**63-1; the job's, so that a second attempt gives the same result
    capture: bool  # whether a later stage of this job takes this stage's payload
    wall: MediaWall | None = None  # decodes the media; None: of a job that has none


@dataclass(frozen=True, slots=True)
class OmniTextPrompt:
    """Input of a first AR stage: a rendered prompt and its decoded media.

    ``multi_modal_data`` is vLLM's: ``audio``: [(float32 [T], sampling rate)], ``image``:
    [PIL.Image], ``video``: [(uint8 [F, H, W, 3], metadata)].
    """

    prompt: str
    multi_modal_data: Mapping[str, Any]
    parameters: ArParameters
    seed: int
    capture: bool
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OmniTokensPrompt:
    """Input of an AR stage fed by another stage, or by embeddings: token ids, and what goes with them.

    prompt_token_ids        [P]; empty with prompt_embeds
    prompt_embeds           [P, H], float, on the CPU: the prompt itself, or None
    additional_information  named tensors and values the model's stage hooks read, per request and per step
    """

    prompt_token_ids: Sequence[int]
    additional_information: Mapping[str, Any]
    parameters: ArParameters
    seed: int
    capture: bool
    prompt_embeds: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class CodecPrompt:
    """Input of code2wav: codes int64 [N] without eos, and the speaker's name."""

    codes: torch.Tensor
    voice: str
    parameters: DiffusionParameters
    seed: int


class EchoPrompt(NamedTuple):
    """Input of the stage without a model."""

    text: str
    upstream_bytes: int  # of the payloads' tensors, checked against the digest
    parameters: EchoParameters
    seed: int
    capture: bool


EnginePrompt = OmniTextPrompt | OmniTokensPrompt | CodecPrompt | EchoPrompt


WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage run is: ``done`` of ``total`` ``unit``; total None when unknown."""

    done: int
    total: int | None
    unit: str  # "tokens", "steps", …; WAITING: the runner holds the stage run back until it has room
    text: str | None = None  # all the text so far, of a stage that makes text

    @property
    def waiting(self) -> bool:
        return self.unit == WAITING


@dataclass(frozen=True, slots=True)
class Artifact:
    """An output the user may fetch."""

    name: str  # "audio.wav"
    media_type: str  # "audio/wav"
    data: bytes


class OmniModelRunnerOutput(NamedTuple):
    """What a runner yields for one request when it is done.

    token_ids           the generated tokens (AR stages; eos included when it stopped there)
    text                their text, of a stage with a tokenizer
    finish_reason       "stop" | "length"; None for stages without tokens
    hidden_states       [P + N - 1, H] rows for the next stage, when captured
    multimodal_outputs  named tensors, lists or dicts of tensors (``waveform``: float32 [S], …)
    values              small JSON values for the next stage and the job's record
    prompt_token_ids    the prompt's [P]; empty where there is none
    room                what the hidden states take of the worker's budget, until ``free``
    """

    token_ids: Sequence[int] = ()
    text: str | None = None
    finish_reason: str | None = None
    prompt_token_ids: Sequence[int] = ()
    hidden_states: torch.Tensor | None = None
    multimodal_outputs: Mapping[str, Any] = _NOTHING
    values: Mapping[str, Any] = _NOTHING
    room: Reservation | None = None

    def free(self) -> None:
        """The hidden states are stored, or of no use any more: others may be captured. Safe to call twice."""
        if self.room is not None:
            self.room.free()
