"""Speech with real weights: what is spoken is heard again, word for word, alone and in company."""

import base64
import io
import wave
from collections.abc import Iterator
from statistics import median

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]

from omni_jobs.errors import InvalidInput, OmniJobsError
from tests.oracles.sentences import SENTENCES
from tests.oracles.word_errors import word_error_rate, words_of
from workers.offline import OmniLLM
from workers.offline.omni_llm import OmniOutput


def spoken(sentence: str, seed: int = 7) -> dict[str, object]:
    messages = [{"role": "user", "content": sentence}]
    return {"messages": messages, "modalities": ["audio"], "seed": seed}


def recorded(data: bytes) -> dict[str, object]:
    sound = {"data": base64.b64encode(data).decode("ascii")}
    return {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}]}


def outputs(found: list[OmniOutput | OmniJobsError]) -> list[OmniOutput]:
    assert [each for each in found if isinstance(each, OmniJobsError)] == []
    return [each for each in found if isinstance(each, OmniOutput)]


@pytest.fixture(scope="module")
def voice() -> Iterator[OmniLLM]:
    with OmniLLM("speech") as llm:
        yield llm


@pytest.fixture(scope="module")
def listener() -> Iterator[OmniLLM]:
    with OmniLLM("transcribe") as llm:
        yield llm


@pytest.fixture(scope="module")
def recordings(voice: OmniLLM) -> list[bytes]:
    return [each.audio or b"" for each in outputs(voice.generate([spoken(sentence) for sentence in SENTENCES]))]


def test_thirty_sentences_are_heard_as_they_were_said(recordings: list[bytes], listener: OmniLLM) -> None:
    heard = outputs(listener.generate([recorded(data) for data in recordings]))
    assert len(heard) == 30
    texts = [each.text or "" for each in heard]
    rates = [word_error_rate(said, text) for said, text in zip(SENTENCES, texts, strict=True)]
    words = [len(words_of(sentence)) for sentence in SENTENCES]
    overall = sum(rate * count for rate, count in zip(rates, words, strict=True)) / sum(words)
    assert overall <= 0.10
    assert median(rates) <= 0.05


def test_a_seed_gives_the_same_samples_alone_and_in_company(voice: OmniLLM, recordings: list[bytes]) -> None:
    for number in (0, 17):
        (alone,) = outputs(voice.generate([spoken(SENTENCES[number])]))
        assert alone.audio == recordings[number]
    (other,) = outputs(voice.generate([spoken(SENTENCES[0], seed=8)]))
    assert other.audio != recordings[0]


def test_the_sound_is_as_long_as_the_sentence_takes(recordings: list[bytes]) -> None:
    for sentence, data in zip(SENTENCES, recordings, strict=True):
        samples, rate = soundfile.read(io.BytesIO(data))
        assert rate == 24_000
        assert 0.15 <= len(samples) / rate / len(sentence.split()) <= 1.0


def sound(seconds: float, rate: int = 16_000, channels: int = 1) -> bytes:
    """Return a WAV of silence with any sampling rate and number of channels."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(bytes(2 * channels * round(seconds * rate)))
    return file.getvalue()


def hours(count: int) -> bytes:
    """Return hours of silence in half a megabyte."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(count * 3600 * 16_000, np.int16), 16_000, format="FLAC")
    return file.getvalue()


DATA = "requests.0.messages.0.content.0.input_audio.data"
BAD_JOBS = {
    "0.05 s": (lambda: recorded(sound(0.05)), "at least 0.1 s", DATA),
    "no samples": (lambda: recorded(sound(0)), "no samples", DATA),
    "3 hours": (lambda: recorded(hours(3)), "at most 600 s", DATA),
    "3 Hz": (lambda: recorded(sound(10, rate=3)), "4000 to 384000 Hz", DATA),
    "32 channels": (lambda: recorded(sound(1, channels=32)), "at most 16", DATA),
    "no sound": (lambda: recorded(b"RIFF"), "audio", DATA),
    "another output": (lambda: {**recorded(sound(1)), "modalities": ["audio"]}, "text", "requests.0.modalities.0"),
    "another stage": (
        lambda: {**recorded(sound(1)), "stages": {"think": {"max_tokens": 3}}},
        "listen",
        "requests.0.stages.think",
    ),
    "parameters of another stage": (
        lambda: {**recorded(sound(1)), "stages": {"listen": {"max_tokens": 3}}},
        "unknown key",
        "requests.0.stages.listen.max_tokens",
    ),
}


@pytest.mark.parametrize("name", BAD_JOBS)
def test_a_bad_job_is_refused_and_the_next_one_is_heard(listener: OmniLLM, recordings: list[bytes], name: str) -> None:
    request, message, field = BAD_JOBS[name]
    with pytest.raises(InvalidInput, match=message) as caught:
        listener.generate([request()])
    assert caught.value.field == field
    (heard,) = outputs(listener.generate([recorded(recordings[0])]))
    assert word_error_rate(SENTENCES[0], heard.text or "") <= 0.1


@pytest.mark.parametrize("wanted", ["midi", ""])
def test_a_format_that_is_not_made_is_refused(voice: OmniLLM, wanted: str) -> None:
    with pytest.raises(InvalidInput, match="wav, flac, mp3") as caught:
        voice.generate([{**spoken(SENTENCES[0]), "audio": {"format": wanted}}])
    assert caught.value.field == "requests.0.audio.format"
