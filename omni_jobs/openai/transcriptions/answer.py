"""What a transcription is answered with: a function of its job, in OpenAI's forms."""

import zlib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from omni_jobs.openai.chat.answer import logprobs_of, text_of, usage_of
from omni_jobs.openai.transcriptions.request import WantedTranscription
from omni_jobs.views import JobView


class TokenUsage(BaseModel):
    """The tokens of the stage that made the text."""

    type: Literal["tokens"] = "tokens"
    input_tokens: int
    output_tokens: int
    total_tokens: int


class DurationUsage(BaseModel):
    """How long the recording is."""

    type: Literal["duration"] = "duration"
    seconds: float


class Transcription(BaseModel):
    """The answer ``json``."""

    text: str
    logprobs: list[dict[str, Any]] | None = None
    usage: DurationUsage | TokenUsage | None = None


class TranscriptionSegment(BaseModel):
    """A piece of the text, about a sentence; times are seconds from the recording's begin.

    No pipeline tells ``seek``, ``tokens`` and ``temperature``, which are 0 and empty. ``avg_logprob`` and
    ``no_speech_prob`` are 0 where the model does not tell them. ``compression_ratio`` is that of the text.
    """

    id: int
    seek: int = 0
    start: float
    end: float
    text: str
    tokens: list[int] = []
    temperature: float = 0.0
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptionWord(BaseModel):
    """A word with its times, in seconds from the recording's begin."""

    word: str
    start: float
    end: float


class VerboseTranscription(BaseModel):
    """The answer ``verbose_json``. ``language`` is a code, or empty where nobody tells it; ``duration`` in seconds."""

    task: Literal["transcribe"] = "transcribe"
    language: str
    duration: float
    text: str
    segments: list[TranscriptionSegment] | None = None
    words: list[TranscriptionWord] | None = None
    usage: DurationUsage | None = None


def transcription_of(job: JobView, wanted: WantedTranscription) -> Transcription:
    """Return the answer ``json`` to a completed job."""
    logprobs = logprobs_of(job, wanted.stage) if wanted.with_logprobs else None
    told = [{name: each.get(name) for name in ("token", "bytes", "logprob")} for each in logprobs or ()]
    return Transcription(
        text=text_of(job),
        logprobs=told if logprobs is not None else None,
        usage=_duration(job, wanted.stage) or token_usage_of(job, wanted.stage),
    )


def verbose_transcription_of(job: JobView, wanted: WantedTranscription) -> VerboseTranscription:
    """Return the answer ``verbose_json`` to a completed job."""
    heard = _heard(job, wanted.stage)
    segments = heard.get("segments", ())
    words = [word for segment in segments for word in segment.get("words", ())]
    usage = _duration(job, wanted.stage)
    return VerboseTranscription(
        language=heard.get("language") or "",
        duration=usage.seconds if usage is not None else 0.0,
        text=text_of(job),
        segments=[_segment(number, each) for number, each in enumerate(segments)]
        if "segment" in wanted.granularities
        else None,
        words=[TranscriptionWord(word=each["text"], start=each["start_s"], end=each["end_s"]) for each in words]
        if "word" in wanted.granularities
        else None,
        usage=usage,
    )


def token_usage_of(job: JobView, stage: str) -> TokenUsage | None:
    """Return the tokens of the stage; None if it does not count them."""
    counted = usage_of([job], stage)
    if counted is None:
        return None
    return TokenUsage(
        input_tokens=counted.prompt_tokens, output_tokens=counted.completion_tokens, total_tokens=counted.total_tokens
    )


def _heard(job: JobView, stage: str) -> Mapping[str, Any]:
    """Return the transcript of the job's one recording; empty if the stage tells none."""
    transcripts: list[dict[str, Any]] = job.made.get("transcripts", {}).get(stage, [])
    return transcripts[0] if transcripts else {}


def _duration(job: JobView, stage: str) -> DurationUsage | None:
    seconds = _heard(job, stage).get("duration_s")
    return None if seconds is None else DurationUsage(seconds=seconds)


def _segment(number: int, its: Mapping[str, Any]) -> TranscriptionSegment:
    text = its["text"].encode()
    return TranscriptionSegment(
        id=number,
        start=its["start_s"],
        end=its["end_s"],
        text=its["text"],
        avg_logprob=its.get("avg_logprob", 0.0),
        compression_ratio=round(len(text) / len(zlib.compress(text)), 3),
        no_speech_prob=its.get("no_speech_prob", 0.0),
    )
