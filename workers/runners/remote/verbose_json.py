"""``heard``: the transcript that an answer of a server tells, with the times of its segments where it has them.

OpenAI, Groq, whisper.cpp, speaches and vLLM each write ``verbose_json`` in their own way: numbers as strings, words
beside the segments or within them, null for what they do not know; Hugging Face's servers write ``chunks``. Times that
cannot be read are as good as none: then there are no segments, because subtitles would lack what was said in between.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from workers.runners.remote.document import MOST_TEXT, Document, PathStep
from workers.runners.remote.failures import bad_answer
from workers.runners.remote.language_codes import language_code
from workers.runners.remote.prompt import RemoteRecording
from workers.transcripts.transcript import Segment, Transcript, Word

_LONGEST_S = 1e7
_CLOCK = re.compile(r"(?:([0-9]{1,4}):)?([0-9]{1,2}):([0-9]{1,2}(?:[.,][0-9]{1,9})?)")
_SEGMENTS = ("segments", "chunks")
_TEXTS = ("text", "word")


class _NoTimes(Exception):
    """A part of a transcript has no times that can be read."""


def heard(document: Document, recording: RemoteRecording, language: str | None) -> Transcript:
    """Return the transcript of a document; without segments where it tells no times.

    ``language`` is that of the transcript where the document names none.

    Raises ModelError for a document without a text, and for more than 4 Mi characters.
    """
    duration_s = recording.duration_s
    if duration_s is None:
        duration_s = _first(_seconds(document, "duration"), _seconds(document, "usage", "seconds"))
    try:
        segments = list(_segments(document, duration_s))
    except _NoTimes:
        segments = []
    text = document.text("text")
    if text is None and not segments:
        raise bad_answer("text: there is none")
    if duration_s is None and segments:
        duration_s = max(segment.end_s for segment in segments)
    said = document.word("language") or language
    return Transcript(recording.media, language_code(said), duration_s, segments, text)


def tells_segments(document: Document) -> bool:
    """Return whether a document has segments, be there times or not."""
    return _name_of_segments(document) is not None


def _name_of_segments(document: Document) -> str | None:
    return next((name for name in _SEGMENTS if isinstance(document.peek(name), list)), None)


def _segments(document: Document, duration_s: float | None) -> Iterator[Segment]:
    name = _name_of_segments(document)
    if name is None:
        return
    count = len(document.peek(name))
    pieces = [_piece(document, duration_s if place + 1 == count else None, name, place) for place in range(count)]
    if sum(len(piece.text) for piece in pieces) > MOST_TEXT:
        raise bad_answer(f"{name}: more text than {MOST_TEXT} characters")
    words = _words(document, "words")
    begins = [piece.start_s for piece in pieces]
    by_piece: list[list[Word]] = [[] for _ in pieces]
    for word in words if pieces and begins == sorted(begins) else ():
        by_piece[max(bisect_right(begins, (word.start_s + word.end_s) / 2) - 1, 0)].append(word)
    for place, piece in enumerate(pieces):
        within = _words(document, name, place, "words")
        yield piece._replace(
            words=within or by_piece[place],
            avg_logprob=_number(document, name, place, "avg_logprob"),
            no_speech_prob=_number(document, name, place, "no_speech_prob"),
            compression_ratio=_number(document, name, place, "compression_ratio"),
        )


def _words(document: Document, *path: PathStep) -> Sequence[Word]:
    """Return the words of a list; none of one that has a word without times."""
    found = document.peek(*path)
    try:
        pieces = [_piece(document, None, *path, place) for place in range(len(found) if isinstance(found, list) else 0)]
    except _NoTimes:
        return ()
    return [Word(piece.start_s, piece.end_s, piece.text) for piece in pieces]


def _piece(document: Document, end_s: float | None, *path: PathStep) -> Segment:
    """Return a segment or a word; ``end_s`` is the end of one that has none of its own. Raises _NoTimes."""
    begin, end = (
        _first(_seconds(document, *path, name), _seconds(document, *path, "timestamp", place))
        for place, name in enumerate(("start", "end"))
    )
    if begin is None or (end is None and end_s is None):
        raise _NoTimes
    text = next((text for text in (_text(document, *path, name) for name in _TEXTS) if text is not None), None)
    if text is None:
        raise _NoTimes
    return Segment(begin, max(begin, end if end is not None else end_s or 0.0), text)


def _text(document: Document, *path: PathStep) -> str | None:
    return document.text(*path) if isinstance(document.peek(*path), str) else None


def _first(one: float | None, other: float | None) -> float | None:
    return other if one is None else one


def _seconds(document: Document, *path: PathStep) -> float | None:
    """Return a time in seconds, as a number, in words or as on a clock; None for what is no time."""
    value = document.peek(*path)
    if isinstance(value, str) and (clock := _CLOCK.fullmatch(value.strip()[:40])) is not None:
        hours, minutes, seconds = clock.groups()
        return int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds.replace(",", "."))
    number = _number(document, *path)
    return None if number is None or not -1 < number < _LONGEST_S else max(number, 0.0)


def _number(document: Document, *path: PathStep) -> float | None:
    value = document.peek(*path)
    if type(value) not in (int, float, str):
        return None
    try:
        number = float(value[:40].strip().removesuffix("s") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
