"""Speech with real weights: what is spoken is heard again, word for word, alone and in company."""

import io
from collections.abc import Iterator
from statistics import median

import pytest
import soundfile  # type: ignore[import-untyped]

from omni_jobs.client import user_message
from omni_jobs.errors import OmniJobsError
from tests.oracles.sentences import SENTENCES
from tests.oracles.word_errors import word_error_rate, words_of
from workers.offline import OmniLLM
from workers.offline.omni_llm import OmniOutput


def spoken(sentence: str, seed: int = 7) -> dict[str, object]:
    messages = [{"role": "user", "content": sentence}]
    return {"messages": messages, "modalities": ["audio"], "seed": seed}


def outputs(found: list[OmniOutput | OmniJobsError]) -> list[OmniOutput]:
    assert [each for each in found if isinstance(each, OmniJobsError)] == []
    return [each for each in found if isinstance(each, OmniOutput)]


@pytest.fixture(scope="module")
def voice() -> Iterator[OmniLLM]:
    with OmniLLM("speech") as llm:
        yield llm


@pytest.fixture(scope="module")
def recordings(voice: OmniLLM) -> list[bytes]:
    return [each.audio or b"" for each in outputs(voice.generate([spoken(sentence) for sentence in SENTENCES]))]


def test_thirty_sentences_are_heard_as_they_were_said(
    recordings: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("recordings")
    files = [directory / f"{number}.wav" for number in range(len(recordings))]
    for file, data in zip(files, recordings, strict=True):
        file.write_bytes(data)
    with OmniLLM("transcribe") as llm:
        heard = outputs(llm.generate([{"messages": [user_message(audio=[file])]} for file in files]))
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
