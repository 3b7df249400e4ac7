"""What a completed job is as a transcription, where its stage tells little or much."""

from datetime import UTC, datetime
from typing import Any

import pytest
from openai.types.audio import TranscriptionVerbose

from omni_jobs.openai.transcriptions.answer import transcription_of, verbose_transcription_of
from omni_jobs.openai.transcriptions.request import WantedTranscription
from omni_jobs.states import JobState
from omni_jobs.views import JobView

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = [{"start_s": 0.0, "end_s": 0.5, "text": "Hello"}, {"start_s": 0.5, "end_s": 0.9, "text": "there."}]
SEGMENT = {"start_s": 0.0, "end_s": 0.9, "text": "Hello there.", "avg_logprob": -0.3, "no_speech_prob": 0.01}


def job(**result: Any) -> JobView:
    return JobView(
        id="job-1",
        pipeline="transcribe",
        pipeline_version="1",
        status=JobState.COMPLETED,
        created_at=NOW,
        started_at=NOW,
        finished_at=NOW,
        modalities=["text"],
        stages=[],
        result=result,
        artifacts=[],
        error=None,
        metadata={},
        seed=1,
    )


def wanted(format: str = "json", *granularities: str, with_logprobs: bool = False) -> WantedTranscription:
    return WantedTranscription("listen", format, granularities or ("segment",), with_logprobs, False)


def test_a_stage_that_tells_the_text_alone() -> None:
    told = job(text="Hello there.")
    assert transcription_of(told, wanted()).model_dump(exclude_none=True) == {"text": "Hello there."}
    verbose = verbose_transcription_of(told, wanted("verbose_json")).model_dump(exclude_none=True)
    assert verbose == {"task": "transcribe", "text": "Hello there.", "language": "", "duration": 0.0, "segments": []}
    TranscriptionVerbose.model_validate(verbose, strict=True)


def test_a_stage_that_tells_all() -> None:
    transcript = {"media": 0, "text": "Hello there.", "language": "en", "duration_s": 1.2}
    told = job(text="Hello there.", transcripts={"listen": [{**transcript, "segments": [{**SEGMENT, "words": WORDS}]}]})
    verbose = verbose_transcription_of(told, wanted("verbose_json", "word", "segment"))
    assert verbose.segments is not None
    [segment] = verbose.segments
    assert (segment.avg_logprob, segment.no_speech_prob, segment.start, segment.end) == (-0.3, 0.01, 0.0, 0.9)
    assert verbose.words is not None
    assert [(word.word, word.start, word.end) for word in verbose.words] == [("Hello", 0.0, 0.5), ("there.", 0.5, 0.9)]
    assert (verbose.language, verbose.duration) == ("en", 1.2)
    usage = {"type": "duration", "seconds": 1.2}
    assert verbose.model_dump()["usage"] == transcription_of(told, wanted()).model_dump()["usage"] == usage


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_a_stage_that_makes_tokens(with_logprobs: bool) -> None:
    token = {"token": "Hi", "bytes": [72, 105], "logprob": -0.25}
    told = job(
        text="Hi",
        usage={"listen": {"prompt_tokens": 9, "completion_tokens": 1}},
        logprobs={"listen": [{**token, "top_logprobs": []}]},
    )
    found = transcription_of(told, wanted(with_logprobs=with_logprobs)).model_dump()
    assert found["logprobs"] == ([token] if with_logprobs else None)
    assert found["usage"] == {"type": "tokens", "input_tokens": 9, "output_tokens": 1, "total_tokens": 10}
