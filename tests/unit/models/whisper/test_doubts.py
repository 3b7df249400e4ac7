"""workers.models.whisper.doubts: when a transcript gets the warning that it may not be what was said."""

from collections.abc import Mapping

import pytest

from workers.models.whisper.doubts import doubts
from workers.models.whisper.languages import ENGLISH
from workers.transcripts.transcript import Segment, Transcript

CLEAR = Segment(0.0, 2.0, " Clear.", avg_logprob=-0.3, no_speech_prob=0.02, compression_ratio=1.1)


def heard(*segments: Segment) -> list[Transcript]:
    return [Transcript(0, "en", 10.0, [CLEAR]), Transcript(1, "en", 10.0, segments)]


@pytest.mark.parametrize(
    ("measured", "word"),
    [
        ({"avg_logprob": -1.05}, "-1.05"),
        ({"no_speech_prob": 0.57}, "nobody speaks"),
        ({"compression_ratio": 9.0}, "repeats itself"),
    ],
)
def test_a_doubtful_segment_is_named_with_its_reason(measured: Mapping[str, float], word: str) -> None:
    doubtful = CLEAR._replace(start_s=2.0, end_s=5.0, **measured)
    [warning] = doubts(heard(CLEAR, doubtful), ENGLISH)
    assert warning["code"] == "uncertain"
    assert word in warning["message"]
    assert "3.0 s of 7.0 s" in warning["message"]
    assert "knows English alone" in warning["message"]
    [warning] = doubts(heard(doubtful), frozenset({"en", "de"}))
    assert "English" not in warning["message"]


@pytest.mark.parametrize("transcripts", [heard(), heard(CLEAR._replace(avg_logprob=-0.65, no_speech_prob=0.36)), []])
def test_clear_speech_and_silence_get_no_warning(transcripts: list[Transcript]) -> None:
    assert doubts(transcripts, ENGLISH) == []
