"""``ModelResponse``: a response, a function of its job and of the request that the job keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel

from omni_jobs.errors import InvalidInput, OmniJobsError
from omni_jobs.openai.chat.answer import finish_reason_of, head_of, logprobs_of, text_of, tool_calls_of, usage_of
from omni_jobs.openai.named_field import with_field_named
from omni_jobs.openai.responses.request import kept_of
from omni_jobs.states import JobState
from omni_jobs.views import JobView

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_STATUSES: Final[Mapping[JobState, ResponseStatus]] = {
    JobState.QUEUED: "queued",
    JobState.IN_PROGRESS: "in_progress",
    JobState.CANCELLING: "in_progress",  # it may be its deadline that ends it
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.EXPIRED: "failed",
    JobState.CANCELLED: "cancelled",
}
_UNFINISHED = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseError(BaseModel):
    """Why a response failed. ``type``: the code of the job's error; ``param``: the field that it names."""

    code: Literal["server_error", "invalid_prompt"]
    message: str
    type: str
    param: str | None


class IncompleteDetails(BaseModel):
    reason: str


class CachedTokens(BaseModel):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class ReasoningTokens(BaseModel):
    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    """The tokens of the stage that made the text. The details are not counted."""

    input_tokens: int
    input_tokens_details: CachedTokens = CachedTokens()
    output_tokens: int
    output_tokens_details: ReasoningTokens = ReasoningTokens()
    total_tokens: int


class ModelResponse(BaseModel):
    """A response of OpenAI's API. Its id is that of its job."""

    id: str
    object: Literal["response"] = "response"
    created_at: int  # unix seconds
    completed_at: int | None
    status: ResponseStatus
    background: bool
    model: str
    output: list[dict[str, Any]]
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    previous_response_id: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_logprobs: int | None
    text: dict[str, Any]
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    truncation: Literal["disabled"] = "disabled"
    store: Literal[True] = True
    metadata: dict[str, Any]
    service_tier: str
    usage: ResponseUsage | None = None


def response_id_of(job_id: str) -> str:
    """Return the id of the response that a job is."""
    return f"resp_{job_id.removeprefix('job-')}"


def stage_of(job: JobView, request: Mapping[str, Any]) -> str:
    """Return the stage that makes the text. Raises NotFound for a job that was not submitted as a response."""
    stage: str = kept_of(request, response_id_of(job.id))["stage"]
    return stage


def attempt_of(job: JobView, stage: str) -> int:
    """Return the number of the stage's last attempt; 0 before its first."""
    return next((run.attempt for run in job.stages if run.name == stage), 0)


def response_of(job: JobView, request: Mapping[str, Any], item: int | None = None) -> ModelResponse:
    """Return the response that a job is, whose admitted ``request`` this is.

    ``item``: the attempt by which its message is named; None: the one that wrote it. Raises NotFound for a job that was
    not submitted as a response.
    """
    response_id = response_id_of(job.id)
    kept = kept_of(request, response_id)
    stage = kept["stage"]
    parameters = request["parameters"].get(stage, {})
    head = head_of(job)
    status, reason = status_of(job, stage)
    instructions = request["messages"][0]["content"] if kept.get("instructions") else None
    return ModelResponse(
        id=response_id,
        created_at=head["created"],
        completed_at=None if job.finished_at is None else int(job.finished_at.timestamp()),
        status=status,
        background=kept.get("background", False),
        model=head["model"],
        output=output_of(job, stage, item or attempt_of(job, stage)) if job.status is JobState.COMPLETED else [],
        error=error_of(job),
        incomplete_details=None if reason is None else IncompleteDetails(reason=reason),
        instructions=instructions,
        previous_response_id=kept.get("previous_response_id"),
        max_output_tokens=parameters.get("max_tokens"),
        temperature=parameters.get("temperature"),
        top_p=parameters.get("top_p"),
        top_logprobs=parameters.get("top_logprobs"),
        text={"format": _format(parameters.get("response_format"))},
        tools=[{"type": "function", "parameters": None, "strict": None, **_flat(each)} for each in _tools(request)],
        tool_choice=_choice(request.get("tool_choice", "auto")),
        parallel_tool_calls=request.get("parallel_tool_calls", True),
        metadata=job.metadata,
        service_tier=head["service_tier"],
        usage=_usage(job, stage),
    )


def status_of(job: JobView, stage: str) -> tuple[ResponseStatus, str | None]:
    """Return the status, and why a response is incomplete; None: it is not."""
    if job.status is JobState.COMPLETED:
        reason = _UNFINISHED.get(finish_reason_of(job, stage))
        return ("completed", None) if reason is None else ("incomplete", reason)
    return _STATUSES[job.status], None


def error_of(job: JobView) -> ResponseError | None:
    """Return the error of a job that failed or ran out of time; None for any other."""
    if job.status not in (JobState.FAILED, JobState.EXPIRED):
        return None
    error = OmniJobsError(f"the job is {job.status.value}")
    if job.error is not None:
        error = OmniJobsError.from_dict(job.error.model_dump())
    return ResponseError(
        code="invalid_prompt" if isinstance(error, InvalidInput) and error.http_status < 500 else "server_error",
        message=with_field_named(error).message,
        type=error.code,
        param=error.field,
    )


def output_of(job: JobView, stage: str, item: int) -> list[dict[str, Any]]:
    """Return the items that a completed job has made: its message, if it has said anything, and its calls of tools."""
    text, calls = text_of(job), calls_of(job)
    if not text and calls:
        return calls
    status = "completed" if status_of(job, stage)[1] is None else "incomplete"
    return [message(job, item, status, [text_part(text, logprobs_shown(job, stage))]), *calls]


def message(job: JobView, item: int, status: str, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the message of the attempt ``item``."""
    return {
        "id": message_id(job, item),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": list(content),
    }


def message_id(job: JobView, item: int) -> str:
    """Return the id of the message that an attempt writes."""
    return f"msg_{_hex(job)}_{item}"


def text_part(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the content of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def calls_of(job: JobView) -> list[dict[str, Any]]:
    """Return the calls of tools that a completed job has made, an item each."""
    return [
        {
            "id": f"fc_{_hex(job)}_{number}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
        }
        for number, call in enumerate(tool_calls_of(job))
    ]


def logprobs_shown(job: JobView, stage: str) -> list[dict[str, Any]]:
    """Return the logprobs of a completed job's text; an empty list if it was not asked for them."""
    return list(logprobs_of(job, stage) or ())


def _hex(job: JobView) -> str:
    return job.id.removeprefix("job-")


def _usage(job: JobView, stage: str) -> ResponseUsage | None:
    usage = usage_of([job], stage) if job.status is JobState.COMPLETED else None
    if usage is None:
        return None
    return ResponseUsage(
        input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens, total_tokens=usage.total_tokens
    )


def _tools(request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    tools: Sequence[Mapping[str, Any]] = request.get("tools", ())
    return tools


def _flat(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool["function"]
    return function


def _choice(choice: str | Mapping[str, Any]) -> str | dict[str, Any]:
    return choice if isinstance(choice, str) else {"type": "function", "name": choice["function"]["name"]}


def _format(format: Mapping[str, Any] | None) -> dict[str, Any]:
    if format is None or format.get("type") != "json_schema":
        return dict(format or {"type": "text"})
    schema = {name: value for name, value in format["json_schema"].items() if value is not None}
    return {"type": "json_schema", **schema}
