"""``Transcript``: what was heard in one recording, and the values in which transcripts go to later stages."""

from collections.abc import Sequence
from typing import Any, NamedTuple

_SEGMENTS_BYTES = 64 << 10  # of all segments' text in the values; the whole text is in the payload's tensor
_SEGMENT_BYTES = 32  # of the numbers and signs around a segment's text, as JSON


class Word(NamedTuple):
    """A word of a transcript with its signs; its times are seconds from the recording's begin."""

    start_s: float
    end_s: float
    text: str  # as the model wrote it, with the space that parts it from the word before


class Segment(NamedTuple):
    """A piece of a transcript, about a sentence; its times are seconds from the recording's begin.

    text               as the model wrote it, with the space that parts it from the text before
    words              of the text, in order; empty where they were not asked for
    avg_logprob        the mean log probability of the tokens of its window, the piece that was transcribed at once
    no_speech_prob     how likely the model holds it that nobody spoke in the window
    compression_ratio  of the window's text

    The last three are None where a server does not tell them.
    """

    start_s: float
    end_s: float
    text: str
    words: Sequence[Word] = ()
    avg_logprob: float | None = None
    no_speech_prob: float | None = None
    compression_ratio: float | None = None


class Transcript(NamedTuple):
    """What was heard in one recording.

    media       the recording's number among the request's media; None: an earlier stage made the sound
    language    a code such as en; None where nothing was said, or nobody told it
    duration_s  of the recording; None: unknown
    whole       all that was said, where it does not come from the segments
    """

    media: int | None
    language: str | None
    duration_s: float | None
    segments: Sequence[Segment]
    whole: str | None = None

    @property
    def text(self) -> str:
        """The transcript's text; empty where nothing was said."""
        return ("".join(segment.text for segment in self.segments) if self.whole is None else self.whole).strip()


def joined_text(transcripts: Sequence[Transcript]) -> str:
    """Return the text of all transcripts, a line feed between two of them."""
    return "\n".join(transcript.text for transcript in transcripts)


def values_of(transcripts: Sequence[Transcript]) -> dict[str, Any]:
    """Return the values of a payload whose text is ``joined_text(transcripts)``.

    transcripts        one object for each recording: ``media``, ``begin`` and ``end`` (its bytes in the UTF-8 of the
                       text), ``language``, ``duration_s``, ``segments`` ([start_s, end_s, text] each)
    language           of the first recording in which something was said, or null
    duration_s         of all recordings whose duration is known
    segments_left_out  how many of the last segments are left out, because values are small
    """
    entries: list[dict[str, Any]] = []
    at = left_out = 0
    room = _SEGMENTS_BYTES
    for transcript in transcripts:
        end = at + len(transcript.text.encode())
        kept: list[list[Any]] = []
        for segment in transcript.segments:
            room -= len(segment.text.encode()) + _SEGMENT_BYTES
            if room >= 0:
                kept.append([segment.start_s, segment.end_s, segment.text.strip()])
        left_out += len(transcript.segments) - len(kept)
        entries.append(
            {
                "media": transcript.media,
                "begin": at,
                "end": end,
                "language": transcript.language,
                "duration_s": _rounded(transcript.duration_s),
                "segments": kept,
            }
        )
        at = end + 1
    return {
        "transcripts": entries,
        "language": next((one.language for one in transcripts if one.language is not None), None),
        "duration_s": round(sum(one.duration_s or 0.0 for one in transcripts), 3),
        "segments_left_out": left_out,
    }


def shown(transcripts: Sequence[Transcript]) -> list[dict[str, Any]]:
    """Return the transcripts as the job's result shows them to the user, one object for each recording.

    Each has ``media``, ``text``, ``language``, ``duration_s`` and ``segments``. A segment has ``start_s``, ``end_s``,
    ``text``, ``avg_logprob`` and ``no_speech_prob``, the last two where they are known; and ``words``
    ({start_s, end_s, text} each) where it has words.
    """
    return [
        {
            "media": transcript.media,
            "text": transcript.text,
            "language": transcript.language,
            "duration_s": _rounded(transcript.duration_s),
            "segments": [_shown_segment(segment) for segment in transcript.segments],
        }
        for transcript in transcripts
    ]


def _shown_segment(segment: Segment) -> dict[str, Any]:
    found: dict[str, Any] = {
        "start_s": segment.start_s,
        "end_s": segment.end_s,
        "text": segment.text.strip(),
    }
    for name, value in (("avg_logprob", segment.avg_logprob), ("no_speech_prob", segment.no_speech_prob)):
        if value is not None:
            found[name] = round(value, 3)
    if segment.words:
        found["words"] = [
            {"start_s": one.start_s, "end_s": one.end_s, "text": one.text.strip()} for one in segment.words
        ]
    return found


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
