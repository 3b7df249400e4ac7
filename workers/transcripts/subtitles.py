"""``subtitles``: transcripts as a file of SubRip (srt) or WebVTT (vtt).

Both are UTF-8 with a line feed after each line, and cues that follow each other: none is empty, overlaps the next one,
or ends when it begins, because players show such cues wrongly or never. Several recordings are taken as if they were
played one after the other. SubRip has no escape for the arrow that parts the times of a cue, so it gets a sign instead.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from workers.transcripts.transcript import Segment, Transcript

MEDIA_TYPES: Mapping[str, str] = {"srt": "application/x-subrip", "vtt": "text/vtt"}
"""The media type of each format."""

_JOINERS = "\u200c\u200d"  # within words of Persian and Hindi, and within emoji


class _Cue(NamedTuple):
    """A text on one line, and the milliseconds from which and to which it is shown."""

    begin: int
    end: int
    text: str


def subtitles(transcripts: Sequence[Transcript], format: str) -> bytes:
    """Return the transcripts as the bytes of a file in a format of ``MEDIA_TYPES``, without cues if nobody spoke."""
    return _WRITERS[format](list(_cues(transcripts))).encode()


def _cues(transcripts: Sequence[Transcript]) -> Iterator[_Cue]:
    spoken = sorted((segment for segment in _in_turn(transcripts) if _line(segment.text)), key=_begin)
    together = [list(group) for _, group in groupby(spoken, key=_begin)]  # one cue, because each would hide the other
    at = 0
    for number, segments in enumerate(together):
        begin = max(at, _begin(segments[0]))
        end = max(round(segment.end_s * 1000) for segment in segments)
        if number + 1 < len(together):
            end = min(end, _begin(together[number + 1][0]))
        at = max(end, begin + 1)
        yield _Cue(begin, at, " ".join(_line(segment.text) for segment in segments))


def _begin(segment: Segment) -> int:
    return round(segment.start_s * 1000)


def _in_turn(transcripts: Sequence[Transcript]) -> Iterator[Segment]:
    begin_s = 0.0
    for transcript in transcripts:
        for segment in transcript.segments:
            yield segment._replace(start_s=begin_s + segment.start_s, end_s=begin_s + segment.end_s)
        begin_s += transcript.duration_s or 0.0


def _line(text: str) -> str:
    """Return a text on one line: an empty line would end its cue, and control characters are in no subtitle."""
    return " ".join("".join(letter if letter.isprintable() or letter in _JOINERS else " " for letter in text).split())


def _srt(cues: Sequence[_Cue]) -> str:
    return "".join(
        f"{number}\n{_time(cue.begin, ',')} --> {_time(cue.end, ',')}\n{cue.text.replace('-->', '→')}\n\n"
        for number, cue in enumerate(cues, 1)
    )


def _vtt(cues: Sequence[_Cue]) -> str:
    shown = (f"\n{_time(cue.begin, '.')} --> {_time(cue.end, '.')}\n{_escaped(cue.text)}\n" for cue in cues)
    return "".join(["WEBVTT\n", *shown])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{rest:03}"


_WRITERS: Mapping[str, Callable[[Sequence[_Cue]], str]] = {"srt": _srt, "vtt": _vtt}
