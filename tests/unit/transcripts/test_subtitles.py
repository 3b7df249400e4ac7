"""workers.transcripts.subtitles: files that players read, whatever was heard."""

import re

import pytest
from pydantic import ValidationError

from workers.models.whisper.parameters import WhisperParameters
from workers.transcripts.subtitles import MEDIA_TYPES, subtitles
from workers.transcripts.transcript import Segment, Transcript

SRT_CUE = re.compile(r"(\d+)\n(\d{2,}:\d\d:\d\d,\d{3}) --> (\d{2,}:\d\d:\d\d,\d{3})\n([^\n]+)\n\n")
VTT_CUE = re.compile(r"\n(\d{2,}:\d\d:\d\d\.\d{3}) --> (\d{2,}:\d\d:\d\d\.\d{3})\n([^\n]+)\n")


def heard(*segments: tuple[float, float, str], duration_s: float = 10.0) -> Transcript:
    return Transcript(0, "en", duration_s, [Segment(*segment) for segment in segments])


def cues(transcripts: list[Transcript]) -> list[tuple[int, int, str]]:
    """Return the cues of both formats, read by their rules, in milliseconds; they must be the same."""
    srt, vtt = (subtitles(transcripts, format).decode() for format in ("srt", "vtt"))
    blocks = SRT_CUE.findall(srt)
    assert SRT_CUE.sub("", srt) == ""
    assert [int(block[0]) for block in blocks] == list(range(1, len(blocks) + 1))
    assert vtt.startswith("WEBVTT\n")
    assert VTT_CUE.sub("", vtt.removeprefix("WEBVTT\n")) == ""
    found = [(_ms(begin), _ms(end), text) for _, begin, end, text in blocks]
    unescaped = [
        (_ms(begin), _ms(end), text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        for begin, end, text in VTT_CUE.findall(vtt)
    ]
    assert [(begin, end) for begin, end, _ in found] == [(begin, end) for begin, end, _ in unescaped]
    assert [text for _, _, text in found] == [text.replace("-->", "→") for _, _, text in unescaped]
    return found


def _ms(time: str) -> int:
    hours, minutes, seconds, milliseconds = map(int, re.split(r"[:,.]", time))
    assert minutes < 60
    assert seconds < 60
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + milliseconds


def test_the_bytes_of_both_formats() -> None:
    transcripts = [heard((0.07, 2.55, " Naïve <b>café</b> & more."), (3661.5, 3662.0, " Done."))]
    assert subtitles(transcripts, "srt").decode() == (
        "1\n00:00:00,070 --> 00:00:02,550\nNaïve <b>café</b> & more.\n\n2\n01:01:01,500 --> 01:01:02,000\nDone.\n\n"
    )
    assert subtitles(transcripts, "vtt").decode() == (
        "WEBVTT\n\n00:00:00.070 --> 00:00:02.550\nNaïve &lt;b&gt;café&lt;/b&gt; &amp; more.\n"
        "\n01:01:01.500 --> 01:01:02.000\nDone.\n"
    )


@pytest.mark.parametrize(
    "text",
    ["one\n\ntwo", "00:00 --> 00:01", "a\r\nb\u2028c\u0085d\u2029", "tab\tnul\0bell\a", "WEBVTT", "7", "NOTE x", "-->"],
)
def test_no_text_breaks_its_cue(text: str) -> None:
    [_, (_, _, found), _] = cues([heard((0, 1, "before"), (1, 2, text), (2, 3, "after"))])
    assert found.split() == re.sub(r"[\0\a]", " ", text).replace("-->", "→").split()


@pytest.mark.parametrize(
    ("segments", "times"),
    [
        ([(0, 3, "a"), (2, 4, "b")], [(0, 2000), (2000, 4000)]),  # overlapping
        ([(2, 3, "b"), (0, 1, "a")], [(0, 1000), (2000, 3000)]),  # in another order
        ([(5, 5, "a"), (5.001, 5.001, "b"), (5.002, 6, "c")], [(5000, 5001), (5001, 5002), (5002, 6000)]),  # no length
        ([(3, 6, "a"), (3, 3, "b"), (6, 7, "c")], [(3000, 6000), (6000, 7000)]),  # two begin together
        ([(4, 3, "a")], [(4000, 4001)]),  # ends before it begins
        ([(0, 1, " "), (1, 2, ""), (2, 3, "\n")], []),  # empty
        ([(359_999, 360_001, "a")], [(359_999_000, 360_001_000)]),  # a hundred hours
        ([(0.9996, 59.9999, "a")], [(1000, 60_000)]),  # rounding carries
    ],
)
def test_cues_follow_each_other(segments: list[tuple[float, float, str]], times: list[tuple[int, int]]) -> None:
    found = [(begin, end) for begin, end, _ in cues([heard(*segments)])]
    assert found == times
    assert all(begin < end for begin, end in found)


def test_what_begins_together_is_one_cue() -> None:
    assert cues([heard((3, 6, "a"), (3, 3, "b"))]) == [(3000, 6000, "a b")]


@pytest.mark.parametrize("word", ["می\u200cروم", "👨\u200d👩\u200d👧"])
def test_joiners_within_words_stay(word: str) -> None:
    assert cues([heard((0, 1, word))]) == [(0, 1000, word)]


def test_recordings_are_shown_one_after_the_other() -> None:
    transcripts = [heard((1, 2, "a"), duration_s=2.5), heard(duration_s=4), heard((0, 1, "b"))]
    assert cues(transcripts) == [(1000, 2000, "a"), (6500, 7500, "b")]


def test_where_nobody_speaks_there_is_no_cue() -> None:
    assert cues([heard()]) == []
    assert subtitles([], "vtt") == b"WEBVTT\n"
    assert set(MEDIA_TYPES) == {"srt", "vtt"}


@pytest.mark.parametrize("wrong", [["srt", "srt"], ["ass"], "srt", None])
def test_another_format_is_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        WhisperParameters(subtitles=wrong)  # type: ignore[arg-type]
