"""Transcriptions with the stock client: real workers hear what is uploaded, and it gets the text in every form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.audio import Transcription, TranscriptionVerbose

from tests.integration.api_server import ApiServer
from tests.integration.openai.stock import Stock
from tests.oracles import samples

TONE = samples.wav(2.0)
SAID = "440 Hz for 2.00 s"


def transcribe(stock: Stock, file: Any = TONE, **more: Any) -> Any:
    return stock.client.audio.transcriptions.create(**{"model": "echo_media", "file": file, **more})


def slowly(seconds: float) -> dict[str, Any]:
    return {"stages": {"answer": {"delay_s": seconds}}}


def newest(api: ApiServer) -> str:
    return str(api.http.get("/v1/jobs", params={"limit": 1}).json()["jobs"])


# Whole answers.


def test_a_recording_becomes_text(stock: Stock) -> None:
    transcription = transcribe(stock, temperature=0.0)
    assert isinstance(transcription, Transcription)
    assert transcription.text == SAID
    assert transcription.logprobs is None
    assert transcription.usage.to_dict() == {"type": "duration", "seconds": 2.0}  # type: ignore[union-attr]


def test_the_text_alone(stock: Stock) -> None:
    assert transcribe(stock, response_format="text") == SAID


def test_subtitles(stock: Stock) -> None:
    assert transcribe(stock, response_format="srt") == f"1\n00:00:00,000 --> 00:00:02,000\n{SAID}\n\n"
    vtt = stock.client.audio.transcriptions.with_raw_response.create(
        model="echo_media", file=TONE, response_format="vtt"
    )
    assert vtt.headers["content-type"] == "text/vtt; charset=utf-8"
    assert vtt.text == f"WEBVTT\n\n00:00:00.000 --> 00:00:02.000\n{SAID}\n"


def test_segments_and_words(stock: Stock) -> None:
    verbose = transcribe(
        stock, response_format="verbose_json", timestamp_granularities=["word", "segment"], language="de"
    )
    assert TranscriptionVerbose.model_validate(verbose.to_dict(), strict=True) == verbose
    assert (verbose.text, verbose.language, verbose.duration) == (SAID, "de", 2.0)
    assert verbose.usage.to_dict() == {"type": "duration", "seconds": 2.0}
    [segment] = verbose.segments
    assert (segment.id, segment.start, segment.end, segment.text) == (0, 0.0, 2.0, SAID)
    assert 0 < segment.compression_ratio < 2.4
    assert [(word.word, word.start, word.end) for word in verbose.words][:2] == [("440", 0.0, 0.4), ("Hz", 0.4, 0.8)]


def test_only_what_is_asked_for_has_times(stock: Stock) -> None:
    segments = transcribe(stock, response_format="verbose_json")
    assert (len(segments.segments), segments.words, segments.language) == (1, None, "")
    words = transcribe(stock, response_format="verbose_json", timestamp_granularities=["word"])
    assert (words.segments, len(words.words)) == (None, 5)


def test_what_is_ignored_is_told(stock: Stock, echo_media: ApiServer) -> None:
    vad: Any = {"type": "server_vad", "threshold": 0.5}
    raw = stock.client.audio.transcriptions.with_raw_response.create(
        model="echo_media", file=TONE, chunking_strategy=vad, extra_body={"seed": 7}
    )
    assert raw.headers["x-ignored"] == "chunking_strategy"
    job = echo_media.http.get(f"/v1/jobs/{raw.headers['x-job-id']}").json()
    assert (job["status"], job["seed"]) == ("completed", 7)


@pytest.mark.parametrize("name", ["../../etc/passwd", "\u202egnp.exe", "no suffix", "talk.mp3", 'a"b.wav'])
def test_the_file_s_name_says_nothing(stock: Stock, echo_media: ApiServer, name: str) -> None:
    assert transcribe(stock, (name, TONE, "application/x-made-up")).text == SAID
    assert name not in newest(echo_media)


def test_a_large_file_arrives_whole(stock: Stock, tmp_path: Path) -> None:
    (tmp_path / "long.wav").write_bytes(samples.wav(120.0))
    assert transcribe(stock, tmp_path / "long.wav", response_format="text") == "440 Hz for 120.00 s"


def test_a_key_gives_the_same_text_again(stock: Stock) -> None:
    more: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "heard-1"}}
    raw = stock.client.audio.transcriptions.with_raw_response
    first = raw.create(model="echo_media", file=TONE, **more)
    assert raw.create(model="echo_media", file=TONE, **more).headers["x-job-id"] == first.headers["x-job-id"]
    assert [event.type for event in transcribe(stock, stream=True, **more)][-1] == "transcript.text.done"
    error = stock.error(openai.BadRequestError, lambda: transcribe(stock, samples.wav(1.0), **more))
    assert error.code == "idempotency_key_reused"


# Streams.


def test_a_stream_grows(stock: Stock) -> None:
    *deltas, done = transcribe(stock, stream=True, extra_body=slowly(1.0))
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert "".join(event.delta for event in deltas) == done.text == SAID
    assert len([event for event in deltas if event.delta]) > 1
    assert (done.type, done.usage.type, done.usage.output_tokens) == ("transcript.text.done", "tokens", 5)


def test_a_stream_whose_job_is_cancelled_ends_in_an_error(stock: Stock, echo_media: ApiServer) -> None:
    stream = transcribe(stock, stream=True, extra_body=slowly(600))
    assert next(stream).delta == ""
    job_id = stream.response.headers["x-job-id"]
    echo_media.http.post(f"/v1/jobs/{job_id}/cancel")
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "job_cancelled"
    assert caught.value.body["job_id"] == job_id  # type: ignore[index]


# What is refused.


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"file": b""}, "file"),
        ({"file": b"RIFF no sound"}, "file"),
        ({"file": samples.image(8, 8)}, "file"),
        ({"file": TONE[:40]}, "file"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"response_format": "srt", "stream": True}, "response_format"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities"),
        ({"response_format": "verbose_json", "timestamp_granularities": ["letter"]}, "timestamp_granularities"),
        ({"include": ["logprobs"]}, "include"),
        ({"include": ["speakers"]}, "include"),
        ({"language": "not a language"}, "language"),
        ({"prompt": "Pharos"}, "prompt"),
        ({"temperature": 9}, "temperature"),
        ({"keywords": ["Pharos"]}, "keywords"),
        ({"known_speaker_names": ["Ada"]}, "known_speaker_names"),
        ({"extra_body": {"temperature": "warm"}}, "temperature"),
        ({"extra_body": {"seed": "7.5"}}, "seed"),
        ({"extra_body": {"stream": "perhaps"}}, "stream"),
        ({"extra_body": {"stages": "{"}}, "stages"),
        ({"extra_body": {"stages": {"answer": {"delay_s": "long"}}}}, "stages.answer.delay_s"),
        ({"extra_body": {"stages": '{"answer": {"voice": 1}}'}}, "stages.answer.voice"),
        ({"extra_body": {"stages": '{"answer": {"words": 1}}'}}, "timestamp_granularities"),
        ({"extra_body": {"hotwords": "Pharos"}}, "hotwords"),
    ],
)
def test_what_is_refused_is_a_bad_request_that_names_it(
    stock: Stock, echo_media: ApiServer, more: dict[str, Any], param: str
) -> None:
    before = newest(echo_media)
    error = stock.error(openai.BadRequestError, lambda: transcribe(stock, **more))
    assert (error.code, error.type, error.param) == ("invalid_request", "invalid_request_error", param)
    assert newest(echo_media) == before


def test_translations_are_not_there(stock: Stock) -> None:
    call = stock.client.audio.translations.create
    assert stock.error(openai.NotFoundError, lambda: call(model="echo_media", file=TONE)).code == "not_found"


# What the stock client cannot send.

MODEL = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\necho_media\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + TONE + b"\r\n"
NAMED = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a\0b.wav"\r\n\r\n' + TONE + b"\r\n"
TEXT = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nsound\r\n'
OTHER = b'--x\r\nContent-Disposition: form-data; name="prompt"; filename="a"\r\n\r\nsound\r\n'
NUL = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na\0b\r\n'
END = b"--x--\r\n"
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (MODEL + END, "file"),
        (FILE + END, "model"),
        (MODEL + MODEL + FILE + END, "model"),
        (MODEL + FILE + FILE + END, "file"),
        (MODEL + FILE + FILE + FILE + END, "body"),
        (MODEL + TEXT + END, "file"),
        (MODEL + FILE + OTHER + END, "prompt"),
        (MODEL + FILE + NUL + END, "prompt"),
        (MODEL + FILE, "body"),
        (b"", "body"),
    ],
)
def test_a_form_that_is_none_is_refused(echo_media: ApiServer, body: bytes, param: str) -> None:
    error = refused(echo_media, body, MULTIPART)
    assert (error["code"], error["param"]) == ("invalid_request", param)


def test_a_form_without_a_boundary_is_refused(echo_media: ApiServer) -> None:
    assert refused(echo_media, MODEL + FILE + END, {"Content-Type": "multipart/form-data"})["param"] == "body"


def test_a_name_with_nul_is_dropped_as_any_other(echo_media: ApiServer) -> None:
    answer = echo_media.http.post("/v1/audio/transcriptions", content=MODEL + NAMED + END, headers=MULTIPART)
    assert answer.status_code == 200, answer.text
    assert "\0" not in answer.text


def refused(api: ApiServer, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    answer = api.http.post("/v1/audio/transcriptions", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    return dict(answer.json()["error"])
