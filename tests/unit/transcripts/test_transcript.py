"""workers.transcripts.transcript: the text of several recordings, and where each one's stands in it."""

import json

from workers.transcripts.transcript import Segment, Transcript, Word, joined_text, shown, values_of

FIRST = Transcript(0, "en", 3.25, [Segment(0.5, 1.0, " Naïve"), Segment(1.0, 3.0, " café.")])
SILENT = Transcript(2, None, 1.0, [])
LAST = Transcript(5, "en", 2.0, [Segment(0.0, 2.0, " Done.")])


def test_the_bytes_of_each_transcript_are_where_the_values_say() -> None:
    transcripts = [FIRST, SILENT, LAST]
    text = joined_text(transcripts).encode()
    values = values_of(transcripts)
    pieces = {one["media"]: text[one["begin"] : one["end"]].decode() for one in values["transcripts"]}
    assert pieces == {0: "Naïve café.", 2: "", 5: "Done."}
    assert values["language"] == "en"
    assert values["duration_s"] == 6.25
    assert values["transcripts"][0]["segments"] == [[0.5, 1.0, "Naïve"], [1.0, 3.0, "café."]]
    assert values["transcripts"][1]["language"] is None


def test_the_user_sees_segments_and_their_words() -> None:
    words = (Word(0.5, 0.75, " Naïve"), Word(0.75, 1.0, " café."))
    spoken = Segment(0.5, 1.0, " Naïve café.", words, avg_logprob=-0.25049, no_speech_prob=0.0123)
    first, silent = shown([Transcript(0, "en", 3.25, [spoken]), SILENT])
    assert first == {
        "media": 0,
        "text": "Naïve café.",
        "language": "en",
        "duration_s": 3.25,
        "segments": [
            {
                "start_s": 0.5,
                "end_s": 1.0,
                "text": "Naïve café.",
                "avg_logprob": -0.25,
                "no_speech_prob": 0.012,
                "words": [
                    {"start_s": 0.5, "end_s": 0.75, "text": "Naïve"},
                    {"start_s": 0.75, "end_s": 1.0, "text": "café."},
                ],
            }
        ],
    }
    assert silent == {"media": 2, "text": "", "language": None, "duration_s": 1.0, "segments": []}
    assert all("words" not in segment for segment in shown([FIRST])[0]["segments"])


def test_hours_of_segments_stay_small() -> None:
    segments = [Segment(float(n), n + 1.0, " A sentence of thirty letters ä.") for n in range(20_000)]
    values = values_of([Transcript(0, "en", 20_000.0, segments)])
    kept = values["transcripts"][0]["segments"]
    assert len(kept) + values["segments_left_out"] == 20_000
    assert kept[0][2] == "A sentence of thirty letters ä."
    assert len(kept) > 500
    assert len(json.dumps(values)) < 128 << 10


def test_nothing_heard_is_no_language() -> None:
    assert values_of([SILENT])["language"] is None
    assert joined_text([SILENT]) == ""


def test_what_a_server_does_not_tell_is_missing() -> None:
    told = Transcript(None, None, None, [Segment(0.0, 1.0, "Hi")], whole=" Hi there. ")
    (transcript,) = shown([told])
    assert (transcript["media"], transcript["duration_s"], transcript["text"]) == (None, None, "Hi there.")
    assert transcript["segments"] == [{"start_s": 0.0, "end_s": 1.0, "text": "Hi"}]
    assert values_of([told, FIRST])["duration_s"] == 3.25
