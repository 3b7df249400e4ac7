from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import InvalidRequest
from workers.runners.echo.answer import AnswerPrompt, BroughtSound
from workers.runners.echo.echo_runner import EchoRunner
from workers.runners.echo.hearing import HEARD_HZ
from workers.runners.echo.parameters import AnswerParameters, ToneParameters
from workers.runners.echo.tone import TONE_HZ, TonePrompt
from workers.runners.echo.tone_length import tone_s
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import OmniModelRunnerOutput, Progress

SOUND = BroughtSound(1, (0.5 * np.sin(2 * np.pi * 440 / HEARD_HZ * np.arange(HEARD_HZ))).astype(np.float32))


async def run(prompt: AnswerPrompt | TonePrompt, seen: list[Progress] | None = None) -> OmniModelRunnerOutput:
    runner = EchoRunner(OmniEngineArgs("answer", None, "cpu", None, 2))
    await runner.start()
    try:
        return await runner.run(prompt, ([] if seen is None else seen).append)
    finally:
        await runner.close()


def asked(text: str, *media: BroughtSound | str, **parameters: Any) -> AnswerPrompt:
    return AnswerPrompt("answer", text, media, AnswerParameters.model_validate(parameters))


async def test_the_answer_is_the_text_and_a_line_for_each_medium() -> None:
    output = await run(asked("Hear:", "a picture", SOUND, language="en", words=True, subtitles=["vtt"]))
    assert output.text == "Hear:\na picture\n440 Hz for 1.00 s"
    [transcript] = output.result["transcripts"]
    assert (transcript["media"], transcript["language"], transcript["duration_s"]) == (1, "en", 1.0)
    assert [word["text"] for word in transcript["segments"][0]["words"]] == ["440", "Hz", "for", "1.00", "s"]
    [file] = output.artifacts
    assert (file.name, bytes(file.data)) == (
        "answer.vtt",
        b"WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n440 Hz for 1.00 s\n",
    )


async def test_a_sound_alone_is_its_transcript_alone() -> None:
    assert (await run(asked("", SOUND))).text == "440 Hz for 1.00 s"


@pytest.mark.parametrize(
    ("parameters", "text", "tokens", "reason"),
    [
        ({}, "one  two\nthree ", 3, "stop"),
        ({"max_tokens": 2}, "one  two", 2, "length"),
        ({"max_tokens": 3}, "one  two\nthree ", 3, "stop"),
        ({"stop": ["ee", "\n"]}, "one  two", 2, "stop"),
        ({"stop": ["w"], "max_tokens": 1}, "one", 1, "length"),
        ({"stop": ["one"]}, "", 0, "stop"),
    ],
)
async def test_an_answer_is_cut_where_the_job_wants(
    parameters: dict[str, Any], text: str, tokens: int, reason: str
) -> None:
    output = await run(asked("one  two\nthree ", **parameters))
    assert (output.text, output.finish_reason) == (text, reason)
    assert output.usage == {"prompt_tokens": 3, "completion_tokens": tokens}


async def test_a_delayed_answer_grows_word_by_word() -> None:
    seen: list[Progress] = []
    output = await run(asked("Hello there, you four", delay_s=0.4), seen)
    assert (seen[-1].done, seen[-1].total, seen[-1].unit) == (4, 4, "tokens")
    texts = [each.text or "" for each in seen]
    assert len(texts) > 2
    assert all(later.startswith(earlier) and later != earlier for earlier, later in pairwise(texts))
    assert texts[-1] == output.text


def frequency(samples: np.ndarray) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * TONE_HZ / len(samples))


async def test_a_tone_is_as_long_and_as_high_as_asked() -> None:
    seen: list[Progress] = []
    output = await run(TonePrompt(2.5, 660.0, 0.0), seen)
    samples = output.multimodal_outputs["waveform"]
    assert (samples.dtype, samples.shape, output.values) == (np.float32, (60_000,), {"sampling_rate": 24_000})
    assert frequency(samples) == 660
    assert 0.49 < np.abs(samples).max() <= 0.5
    assert (samples[0], samples[-1]) == (0, 0)
    assert [(each.done, each.total) for each in seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("characters", "parameters", "seconds"),
    [(0, {}, 0.1), (20, {}, 1.0), (20, {"speed": 2.0}, 0.5), (12_000, {}, 600.0), (99_999, {"seconds": 2}, 2.0)],
)
def test_a_text_sounds_a_twentieth_of_a_second_for_each_character(
    characters: int, parameters: dict[str, Any], seconds: float
) -> None:
    assert tone_s("x" * characters, ToneParameters.model_validate(parameters)) == pytest.approx(seconds)


def test_a_text_that_would_sound_for_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="12001 characters would sound for 600 s") as caught:
        tone_s("x" * 12_001, ToneParameters())
    assert caught.value.field == "messages"
