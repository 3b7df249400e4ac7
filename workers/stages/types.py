"""The values that pass between a stage, its runner and the stages around it.

A worker's executor and the offline ``OmniLLM`` pass the same values, so both give the same results. A value of which
every stage run makes one is a NamedTuple, because it is made in half the time of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from omni_jobs.errors import ConfigError, ModelError, OmniJobsError, PayloadCorrupt
from omni_jobs.pipelines.parameters import StageParameters

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from omni_jobs.media.wall import MediaWall
    from omni_jobs.payloads import AdditionalInformationPayload, Payload

_NOTHING: Mapping[str, Any] = MappingProxyType({})

TensorTree: TypeAlias = "torch.Tensor | list[torch.Tensor] | dict[str, torch.Tensor]"
"""One named output of a model, or one name of additional information."""


def convert_tensors(tree: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the tree, a tensor or a list or dict of trees, with ``convert`` applied to each of its tensors."""
    if isinstance(tree, Mapping):
        return {name: convert_tensors(member, convert) for name, member in tree.items()}
    if isinstance(tree, list | tuple):
        return [convert_tensors(member, convert) for member in tree]
    return convert(tree)


Parameters = TypeVar("Parameters", bound=StageParameters, covariant=True)


class StageInput(NamedTuple, Generic[Parameters]):
    """One job at one stage: the values from which an input processor makes the engine's prompt."""

    job_id: str
    request: Mapping[str, Any]  # the admitted request (omni_jobs.requests), media by number
    media: Sequence[bytes | memoryview]  # the request's media, not decoded, in the order of their numbers
    upstream: Mapping[str, Payload]  # stage name → its payload; only the stage's ``inputs``
    parameters: Parameters  # those of the stage's component or kind; merged: the job's over the stage config's
    seed: int  # 0 … 2**63-1; the job's, so that a second attempt gives the same result
    capture: bool  # whether the engine keeps hidden states for a later stage
    wall: MediaWall | None = None  # decodes the media; None: media are refused
    has_successors: bool = False  # whether a later stage of the job takes this stage's payload

    @property
    def previews(self) -> bool:
        """Whether the job asked for previews."""
        return bool(self.request.get("previews"))

    @property
    def voice(self) -> str | None:
        """The voice that the job asks for; None: it has none.

        That of a payload may be another, of the job from which this one was forked.
        """
        return (self.request.get("audio") or {}).get("voice")

    def information(self, stage: str) -> AdditionalInformationPayload:
        """Return the additional information that an earlier stage left. Raises PayloadCorrupt if there is none."""
        payload = self.upstream[stage]
        information = payload.additional_information
        if information is None:
            raise PayloadCorrupt("missing", field="additional_information", key=payload.key, stage=stage)
        return information

    @contextmanager
    def wall_for(self, field: str | None) -> Iterator[MediaWall]:
        """Give a block the media wall for a medium of the request, whose ``field`` the wall's errors then name.

        Raises ConfigError without a wall.
        """
        if self.wall is None:
            raise ConfigError("a stage without a media wall takes no media", field=field)
        try:
            yield self.wall
        except OmniJobsError as error:
            error.field = field
            raise

    @property
    def upstream_key(self) -> str | None:
        """The key of the payload that the prompt is made of, or those of several; None where none has a key."""
        return ", ".join(payload.key for payload in self.upstream.values() if payload.key is not None) or None


EnginePrompt: TypeAlias = object
"""The prompt that an input processor makes for its stage's runner, which refuses a type that is not its own."""


WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage run is, as its runner reports it: ``done`` of ``total``; total None when it is not known."""

    done: int
    total: int | None
    unit: str  # "tokens", "steps", …; WAITING: the runner holds the stage run back until it has room
    text: str | None = None  # the whole text so far, of a stage that makes text
    resumed_at: int | None = None  # the ``steps_done`` of the snapshot from which it went on; None: it began anew
    picture: torch.Tensor | NDArray[Any] | None = None  # the newest preview, uint8 [h, w, 3], if the job asked for any

    def __post_init__(self) -> None:
        """Raise ModelError for what no report can hold: it is written together with those of other stage runs."""
        if not (
            type(self.done) is int
            and (self.total is None or type(self.total) is int)
            and type(self.unit) is str
            and (self.text is None or type(self.text) is str)
        ):
            raise ModelError(f"no progress: {self!r:.200}", field="progress")

    @property
    def waiting(self) -> bool:
        """Whether the runner holds the stage run back until it has room."""
        return self.unit == WAITING


class Snapshot(NamedTuple):
    """The state of a stage run between two of its steps, from which another attempt can go on.

    tensors     named tensors, lists or dicts of tensors of torch, on the CPU; nobody changes them any more
    values      JSON values by name
    steps_done  how many steps had been taken
    """

    tensors: Mapping[str, TensorTree]
    values: Mapping[str, Any]
    steps_done: int


class ReservedMemory(Protocol):
    """Memory that a runner keeps for an output until ``free``; ``CaptureShare`` implements it."""

    def free(self) -> None:
        """Give the memory back; safe to call twice."""


@dataclass(frozen=True, slots=True)
class EncodedOutput:
    """An output that its runner gives encoded, in a format of the outputs' table."""

    data: bytes | memoryview
    format: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """An output that the user may fetch once it is stored."""

    name: str  # "audio.wav"
    media_type: str  # "audio/wav"
    data: bytes | memoryview = field(repr=False)  # may be many
    modality: str  # "audio"


class OmniModelRunnerOutput(NamedTuple):
    """The output of a runner for one prompt, of P prompt tokens and N generated ones. ``Stage.finish`` takes it.

    token_ids           the generated tokens (AR stages; eos included when it stopped there)
    text                their text, of a stage with a tokenizer
    finish_reason       "stop" | "length"; None for stages without tokens
    hidden_states       [P + N - 1, H] rows for the next stage, when captured
    multimodal_outputs  named tensors, lists or dicts of tensors (``waveform``: float32 [S], …), of torch or numpy
    values              small JSON values for the next stage and the job's record
    result              JSON for the user by name, which the job's result keeps under the name and the stage's name
    warnings            for the user: {code, message} each
    tool_calls          the calls of tools that the text had, {"id", "type", "function": {"name", "arguments"}} each
    usage               {"prompt_tokens", "completion_tokens"} of a runner that counts them itself
    encoded             outputs by modality that the runner gives encoded, to be stored as they are
    artifacts           files beside the pipeline's outputs, for the user; the stage's name begins their names
    prompt_token_ids    the prompt's [P]; empty where there is none
    room                the part of the worker's memory budget that the hidden states take, until ``free``
    """

    token_ids: Sequence[int] = ()
    text: str | None = None
    finish_reason: str | None = None
    prompt_token_ids: Sequence[int] = ()
    hidden_states: torch.Tensor | None = None
    multimodal_outputs: Mapping[str, Any] = _NOTHING
    values: Mapping[str, Any] = _NOTHING
    result: Mapping[str, Any] = _NOTHING
    warnings: Sequence[Mapping[str, str]] = ()
    usage: Mapping[str, int] | None = None
    encoded: Mapping[str, EncodedOutput] = _NOTHING
    artifacts: Sequence[Artifact] = ()
    tool_calls: Sequence[Mapping[str, Any]] = ()
    room: ReservedMemory | None = None

    def free(self) -> None:
        """Free the hidden states' part of the budget once they are stored or of no use; safe to call twice."""
        if self.room is not None:
            self.room.free()


class StageResult(NamedTuple):
    """The values that ``Stage.finish`` makes of one output of its runner, for later stages and the user."""

    payload: Payload | None  # for later stages; None: no later stage of the job takes it
    artifacts: Sequence[Artifact]  # for the user
    result: Mapping[str, Any]  # the stage's part of the job's ``result``: JSON, small
    finish_reason: str | None  # "stop" | "length"; None for stages without tokens
    warnings: Sequence[Mapping[str, str]]  # for the user: {code, message} each
    made: Mapping[str, float] = _NOTHING  # how much was made and heard, by the fields of ``UsageView``
