"""``ChatCompletion``: the answer to a chat completion, a function of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel

from omni_jobs.priority import Priority
from omni_jobs.views import JobView

_TIERS = {Priority.HIGH: "priority", Priority.NORMAL: "default", Priority.LOW: "flex"}
_REASONS = ("stop", "length", "tool_calls", "content_filter")

GAP: Final = '","data":"","expires_at":'
"""What stands in a completion where the base64 of a sound goes. Within a text its quotes would be escaped."""


class CompletionUsage(BaseModel):
    """The tokens of the stage that made the text."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatAudio(BaseModel):
    """The sound of a message. ``data``: base64 of a file in the format that was asked for, which fills a GAP."""

    id: str
    data: str = ""
    expires_at: int  # unix seconds, when the artifact goes
    transcript: str


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    annotations: list[Any] = []
    audio: ChatAudio | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatLogprobs(BaseModel):
    content: list[dict[str, Any]]
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None


class ChatCompletion(BaseModel):
    """A chat completion, whole. Its id is that of its first job."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int  # unix seconds
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage | None  # null: the stage does not count
    service_tier: str
    system_fingerprint: str


def completion_of(jobs: Sequence[JobView], stage: str, sounds: Mapping[str, ChatAudio]) -> ChatCompletion:
    """Return the completion that these completed jobs are, a choice each.

    ``stage`` made their text. ``sounds``: what they made of sound, by job id.
    """
    return ChatCompletion(
        **head_of(jobs[0]),
        choices=[_choice(index, job, stage, sounds.get(job.id)) for index, job in enumerate(jobs)],
        usage=usage_of(jobs, stage),
    )


def head_of(job: JobView) -> dict[str, Any]:
    """Return the fields by which a completion and its chunks are named."""
    return {
        "id": f"chatcmpl-{_hex(job)}",
        "created": int(job.created_at.timestamp()),
        "model": job.pipeline,
        "service_tier": _TIERS[job.priority],
        "system_fingerprint": f"{job.pipeline}-{job.pipeline_version}",
    }


def _hex(job: JobView) -> str:
    return job.id.removeprefix("job-")


def _choice(index: int, job: JobView, stage: str, sound: ChatAudio | None) -> ChatChoice:
    calls = tool_calls_of(job)
    content = text_of(job) or (None if calls or "text" not in job.modalities else "")
    logprobs = logprobs_of(job, stage)
    return ChatChoice(
        index=index,
        message=ChatMessage(content=content, audio=sound, tool_calls=calls or None),
        finish_reason=finish_reason_of(job, stage),
        logprobs=None if logprobs is None else ChatLogprobs(content=logprobs),
    )


def text_of(job: JobView) -> str:
    """Return the text that a completed job has made; "" if it has made none."""
    text = job.made.get("text")
    return text if isinstance(text, str) else ""


def tool_calls_of(job: JobView) -> list[dict[str, Any]]:
    """Return the calls of tools that a completed job has made, in OpenAI's form."""
    return list(job.made.get("tool_calls") or ())


def logprobs_of(job: JobView, stage: str) -> list[dict[str, Any]] | None:
    """Return the logprobs of the text's tokens, in OpenAI's form; None if the job was not asked for them."""
    logprobs: list[dict[str, Any]] | None = job.made.get("logprobs", {}).get(stage)
    return logprobs


def finish_reason_of(job: JobView, stage: str) -> str:
    """Return why the text of a completed job has ended, in OpenAI's words."""
    of_run = next((run.finish_reason for run in job.stages if run.name == stage), None)
    reason = job.made.get("finish_reason") or of_run  # the result alone tells that tools were called
    return reason if reason in _REASONS else "stop"


def usage_of(jobs: Sequence[JobView], stage: str) -> CompletionUsage | None:
    """Return the tokens of these jobs, which have one prompt; None if the stage does not count them."""
    counted = [job.made.get("usage", {}).get(stage) for job in jobs]
    if None in counted:
        return None
    prompt = counted[0].get("prompt_tokens", 0)
    completion = sum(each.get("completion_tokens", 0) for each in counted)
    return CompletionUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def sound_of(job: JobView, keep_s: float) -> ChatAudio:
    """Return the sound of a completed job, without its ``data``. Its artifact goes ``keep_s`` after the job's end."""
    ended = job.finished_at or job.created_at
    return ChatAudio(
        id=f"audio-{_hex(job)}",
        expires_at=int(ended.timestamp() + keep_s),
        transcript=text_of(job),
    )
