"""``doubts``: the warning that a transcript may not be what was said."""

from collections.abc import Sequence

from workers.models.whisper.languages import ENGLISH
from workers.transcripts.transcript import Segment, Transcript

# Measured with tiny.en, in windows of a sentence: English has -0.19 to -0.65, also under noise as loud as the voice;
# German, French, Spanish and Chinese have -0.98 to -1.32, and become fluent English that nobody said.
_LEAST_LOGPROB = -0.66
_MOST_NO_SPEECH = 0.5  # English has 0.01 to 0.36
_MOST_COMPRESSION = 2.4  # above it Whisper's authors take a text for a phrase that the model repeats


def doubts(transcripts: Sequence[Transcript], languages: frozenset[str]) -> list[dict[str, str]]:
    """Return the warning ``uncertain`` if the model doubts a part of the transcripts; none if it does not.

    ``languages``: those that the checkpoint knows.
    """
    segments = [segment for transcript in transcripts for segment in transcript.segments]
    doubted = [segment for segment in segments if _reason(segment) is not None]
    if not doubted:
        return []
    worst = min(doubted, key=lambda segment: segment.avg_logprob or 0.0)
    said, unsure = (sum(segment.end_s - segment.start_s for segment in each) for each in (segments, doubted))
    known = "; it knows English alone, and writes other languages down as English" if languages == ENGLISH else ""
    message = f"{unsure:.1f} s of {said:.1f} s of speech may not be what was said: {_reason(worst)}{known}"
    return [{"code": "uncertain", "message": message}]


def _reason(segment: Segment) -> str | None:
    if segment.avg_logprob is not None and segment.avg_logprob < _LEAST_LOGPROB:
        return f"the model is unsure of its words (their mean log probability is {segment.avg_logprob:.2f})"
    if segment.no_speech_prob is not None and segment.no_speech_prob > _MOST_NO_SPEECH:
        return f"the model thinks that nobody speaks (with a probability of {segment.no_speech_prob:.2f})"
    if segment.compression_ratio is not None and segment.compression_ratio > _MOST_COMPRESSION:
        return f"the model repeats itself (the text compresses {segment.compression_ratio:.1f} times)"
    return None
