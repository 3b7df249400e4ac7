"""The runner of speech with the voice of the extra ``voice``: two stages say what the package says, or refuse."""

import asyncio
import shutil
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

pytest.importorskip("hibari")
from numpy.typing import NDArray

from omni_jobs.errors import ConfigError, EngineDead, ModelError
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from omni_jobs.pipelines.stage_config import StageConfig
from tests.spoken import hibari
from workers.models.hibari.engine_settings import HibariEngine
from workers.models.hibari.hibari_prompts import SPECTRA, FeaturesPrompt, TextPrompt
from workers.models.hibari.hibari_runner import HibariRunner
from workers.models.hibari.parameters import AcousticParameters, VocoderParameters
from workers.models.hibari.processors import Features2WaveProcessor
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput, Progress, StageInput

T = TypeVar("T")

SENTENCES = (
    "The baker gets up long before the sun does.",
    "Dr. Smith paid $5.00 at 9:30am on Jan. 5th, 2019! Did he?",
    'She said: "Yes, of course..." and left.\n\nThe end.',
)
STAGE = StageConfig(
    name="vocoder",
    kind="hibari",
    processor="features2wave",
    inputs={"acoustic": "acoustic_features"},
    produces="waveform",
)


def packaged_voice() -> Path:
    found = find_spec("hibari")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0], "assets")


def args(
    component: str | None, *, directory: Path | None = None, voices: tuple[str, ...] = (), **engine: Any
) -> OmniEngineArgs:
    model = OmniModelConfig(directory or packaged_voice(), "hibari", component, voices)
    settings = HibariEngine(**{"num_workers": 2, **engine})
    return OmniEngineArgs("speak", model, "cpu", None, max_in_flight=4, engine=settings)


def text_prompt(text: str, *, speed: float = 1.0, voice: str | None = None, seed: int = 0) -> TextPrompt:
    return TextPrompt(text, voice, AcousticParameters(speed=speed), seed)


def ignore(progress: Progress) -> None:
    """Drop a report."""


class Speaker:
    """Both runners, started, and their event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.Runner()
        self.acoustic = HibariRunner(args("acoustic"))
        self.vocoder = HibariRunner(args("vocoder"))
        self.wait(self.acoustic.start())
        self.wait(self.vocoder.start())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coroutine)

    async def say(self, text: str, *, seed: int, speed: float = 1.0, pause_s: float = 0.0) -> NDArray[Any]:
        """Return the samples of a text, whose features have crossed from stage to stage as the bytes of a payload."""
        features = await self.acoustic.run(text_prompt(text, speed=speed, seed=seed), ignore)
        prompt = vocoder_prompt(features, VocoderParameters(pause_s=pause_s), seed)
        output = await self.vocoder.run(prompt, ignore)
        assert output.values == {"sampling_rate": 24_000}
        waveform: NDArray[Any] = output.multimodal_outputs["waveform"]
        return waveform

    def close(self) -> None:
        self.wait(self.acoustic.close())
        self.wait(self.vocoder.close())
        self._loop.close()


@pytest.fixture(scope="module")
def speaker() -> Iterator[Speaker]:
    made = Speaker()
    yield made
    made.close()


def vocoder_prompt(output: OmniModelRunnerOutput, parameters: VocoderParameters, seed: int) -> FeaturesPrompt:
    tensors = {name: Tensor.from_numpy(array) for name, array in output.multimodal_outputs.items()}
    payload = Payload(
        manifest=Manifest(kind="acoustic_features", job_id="job", stage="acoustic", attempt=1),
        additional_information=AdditionalInformationPayload(tensors=tensors, values=output.values),
    )
    encoded = b"".join(payload.buffers())
    read = Payload.decode(encoded, len(encoded))
    stage_input = StageInput("job", {}, (), {"acoustic": read}, parameters, seed, capture=False)
    return Features2WaveProcessor(STAGE, None)(stage_input)


def packaged(text: str, *, seed: int, speed: float = 1.0) -> NDArray[Any]:
    """Return the samples of the package's own whole call."""
    samples: NDArray[Any] = hibari()(text, speed=speed, seed=seed)
    return samples


@pytest.mark.parametrize("text", [*SENTENCES, " ".join(SENTENCES)])
@pytest.mark.parametrize(("seed", "speed"), [(0, 1.0), (2**63 - 1, 1.4)])
def test_two_stages_say_what_the_package_says(speaker: Speaker, text: str, seed: int, speed: float) -> None:
    said = speaker.wait(speaker.say(text, seed=seed, speed=speed))
    assert said.dtype == np.float32
    assert np.array_equal(said, packaged(text, seed=seed, speed=speed))


def test_a_long_sentence_in_clauses_is_said_as_the_package_says_it(speaker: Speaker) -> None:
    text = "It goes on and on, " * 40 + "and then it ends."
    assert np.array_equal(speaker.wait(speaker.say(text, seed=1)), packaged(text, seed=1))


def test_company_changes_no_sample(speaker: Speaker) -> None:
    texts = [" ".join(SENTENCES[: 1 + n % 3]) for n in range(8)]

    async def together() -> list[NDArray[Any]]:
        return await asyncio.gather(*(speaker.say(text, seed=seed) for seed, text in enumerate(texts)))

    for seed, (text, said) in enumerate(zip(texts, speaker.wait(together()), strict=True)):
        assert np.array_equal(said, packaged(text, seed=seed))


def test_another_seed_is_another_breath(speaker: Speaker) -> None:
    said = speaker.wait(speaker.say(SENTENCES[0], seed=1))
    other = speaker.wait(speaker.say(SENTENCES[0], seed=2))
    assert said.shape == other.shape
    assert not np.array_equal(said, other)


def test_pauses_stand_between_sentences(speaker: Speaker) -> None:
    text = f"{SENTENCES[0]} {SENTENCES[0]}"
    whole = packaged(text, seed=3)
    half = len(whole) // 2
    said = speaker.wait(speaker.say(text, seed=3, pause_s=0.25))
    assert np.array_equal(said, np.concatenate([whole[:half], np.zeros(6000, np.float32), whole[half:]]))


def test_progress_counts_sentences(speaker: Speaker) -> None:
    reports: list[Progress] = []
    text = " ".join([SENTENCES[0]] * 3)
    features = speaker.wait(speaker.acoustic.run(text_prompt(text), reports.append))
    prompt = vocoder_prompt(features, VocoderParameters(), 0)
    speaker.wait(speaker.vocoder.run(prompt, reports.append))
    assert [(report.done, report.total, report.unit) for report in reports] == [
        (done, 3, "sentences") for done in (0, 1, 2, 3, 0, 1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing to say"),
        ("?! ...", "nothing to say"),
        ("🙂", "nothing to say"),
        ("你好", "another script"),
        ("Привет", "another script"),
    ],
)
def test_a_text_without_words_is_refused(speaker: Speaker, text: str, why: str) -> None:
    with pytest.raises(ModelError, match=why) as raised:
        speaker.wait(speaker.acoustic.run(text_prompt(text), ignore))
    assert raised.value.field == "text"


def test_what_has_no_sound_is_left_out(speaker: Speaker) -> None:
    said = speaker.wait(speaker.say("Hello 🙂 there.\n🙂\n你好\nBye.", seed=0))
    assert 1.5 < len(said) / 24_000 < 4


@pytest.mark.parametrize("text", ["🎉🎉", "...", "你好，世界", "", "![](/x.png)"])
def test_an_answer_that_cannot_be_said_is_silence_with_a_warning(speaker: Speaker, text: str) -> None:
    prompt = replace(text_prompt(text), is_answer=True)
    features = speaker.wait(speaker.acoustic.run(prompt, ignore))
    assert [each["code"] for each in features.warnings][-1] == "nothing_said"
    output = speaker.wait(speaker.vocoder.run(vocoder_prompt(features, VocoderParameters(), 0), ignore))
    waveform = output.multimodal_outputs["waveform"]
    assert len(waveform) == 12_000
    assert not waveform.any()


@pytest.mark.parametrize("is_answer", [True, False])
async def test_of_a_text_that_is_too_long_the_begin_is_said(is_answer: bool) -> None:
    runner = HibariRunner(args("acoustic", max_speech_s=10))
    await runner.start()
    reports: list[Progress] = []
    prompt = replace(text_prompt(" ".join([SENTENCES[0]] * 1000)), is_answer=is_answer)
    output = await runner.run(prompt, reports.append)
    (warning,) = output.warnings
    assert warning["code"] == "cut_short"
    assert "more than 10 s to say: these are over in its sentence 4 of 1000" in warning["message"]
    assert len(output.multimodal_outputs["sentences"]) == 3
    assert Progress(3, 1000, "sentences") in reports
    assert Progress(4, 1000, "sentences") not in reports  # the rest is not made
    await runner.close()


async def test_a_text_of_more_characters_than_are_read_says_so() -> None:
    runner = HibariRunner(args("acoustic", max_speech_s=10))
    await runner.start()
    output = await runner.run(text_prompt("Hello." + " " * (1 << 18) + "Bye."), ignore)
    (warning,) = output.warnings
    assert (warning["code"], "characters" in warning["message"]) == ("cut_short", True)
    await runner.close()


@pytest.mark.parametrize(
    ("written", "same_as", "left_out"),
    [
        ("Read [our docs](/docs/api/) first.", "Read our docs first.", None),
        ("It costs 5 € today.", "It costs 5 euros today.", None),
        ("The cafe\u0301 is open.", "The café is open.", None),
        ("The word 你好 means hello.", "The word means hello.", "你好"),
        ("Nice 🎉 work", "Nice work", "🎉"),
    ],
)
def test_what_is_said_is_what_was_given_or_a_warning(
    speaker: Speaker, written: str, same_as: str, left_out: str | None
) -> None:
    given = speaker.wait(speaker.acoustic.run(text_prompt(written), ignore))
    due = speaker.wait(speaker.acoustic.run(text_prompt(same_as), ignore))
    assert np.array_equal(given.multimodal_outputs["lh"], due.multimodal_outputs["lh"])
    assert [each["message"].rpartition(": ")[2] for each in given.warnings] == ([left_out] if left_out else [])


def test_an_unknown_voice_is_refused(speaker: Speaker) -> None:
    with pytest.raises(ModelError, match="this stage has: heart") as raised:
        speaker.wait(speaker.acoustic.run(text_prompt("Hello.", voice="emma"), ignore))
    assert raised.value.field == "audio.voice"


NOBODY_WRITES = {
    "a number": "1" * 5000,
    "a number in groups": ",".join(["999"] * 3000),
    "a number in quotes": "9999'1" + "7" * 31 + "999. " + "1" * 36 + "'99. " * 100,
    "a number and a stop": "9" * 400 + ".",
    "a decimal": "0." + "1" * 5000,
    "fractions": "1/2" * 1000,
    "hexadecimals": "0x" * 500,
    "a word": "x" * 5000,
    "a long word": "pneumono" * 5000,
    "sentences": "Hi! " * 10_000,
    "lines": "a\n" * 20_000,
    "percents": "%" * 2000 + "a " + "word " * 500,
    "brackets": "[x](" * 500,
    "prose": "The baker gets up at three. " * 10_000,
}


@pytest.mark.parametrize("kind", NOBODY_WRITES)
async def test_of_texts_that_nobody_writes_the_begin_is_said_soon(kind: str) -> None:
    """Some of them take the package's own call minutes, or end it with an IndexError."""
    runner = HibariRunner(args("acoustic", max_speech_s=20))
    await runner.start()
    async with asyncio.timeout(20):
        output = await runner.run(text_prompt(NOBODY_WRITES[kind]), ignore)
    assert [each["code"] for each in output.warnings] == ["cut_short"]
    assert 5 < len(output.multimodal_outputs["f0"]) * 300 / 24_000 <= 20
    await runner.close()


@pytest.mark.parametrize("signs", ["/", "-/", "[", "{{", ":){ ", '"', "…", "\\", "(`)"])
async def test_signs_without_end_say_little_and_soon(signs: str) -> None:
    """The package's rules take a minute and more for them, in which nothing is said that would end the run."""
    runner = HibariRunner(args("acoustic", max_speech_s=20))
    await runner.start()
    async with asyncio.timeout(20):
        output = await runner.run(text_prompt("So " + signs * ((1 << 18) // len(signs) - 9) + " it is."), ignore)
    assert 0 < len(output.multimodal_outputs["f0"]) * 300 / 24_000 < 15
    await runner.close()


async def test_a_cancelled_run_ends_at_once_and_the_next_one_runs() -> None:
    runner = HibariRunner(args("acoustic", max_speech_s=3600))
    await runner.start()
    begun = asyncio.Event()

    def progress(report: Progress) -> None:
        if report.done:
            begun.set()

    run = asyncio.create_task(runner.run(text_prompt(" ".join([SENTENCES[0]] * 1000)), progress))
    await begun.wait()
    loop = asyncio.get_running_loop()
    at = loop.time()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert loop.time() - at < 20
    assert await runner.run(text_prompt("Hello."), ignore)
    await runner.close()
    assert not runner.healthy


async def test_a_closed_runner_takes_no_prompt() -> None:
    runner = HibariRunner(args("vocoder"))
    features = dict.fromkeys(SPECTRA, np.zeros((601, 4), np.float32)) | {"f0": np.zeros(4, np.float32)}
    prompt = FeaturesPrompt(features, [4], VocoderParameters(), 0)
    with pytest.raises(EngineDead):
        await runner.run(prompt, ignore)
    await runner.start()
    assert runner.healthy
    await runner.run(prompt, ignore)
    await runner.close()
    await runner.close()
    assert not runner.healthy
    with pytest.raises(EngineDead):
        await runner.run(prompt, ignore)


@pytest.mark.parametrize("change", [{"lh": np.nan}, {"lr": np.nan}, {"phi": np.inf}])
def test_features_that_are_not_finite_make_no_sound(speaker: Speaker, change: Mapping[str, float]) -> None:
    features = dict.fromkeys(SPECTRA, np.zeros((601, 4), np.float32)) | {"f0": np.full(4, 100, np.float32)}
    features |= {name: np.full_like(features[name], value) for name, value in change.items()}
    with pytest.raises(ModelError, match="not finite"):
        speaker.wait(speaker.vocoder.run(FeaturesPrompt(features, [4], VocoderParameters(), 0), ignore))


def test_each_component_takes_its_own_prompts(speaker: Speaker) -> None:
    with pytest.raises(ModelError, match="the component vocoder takes no TextPrompt"):
        speaker.wait(speaker.vocoder.run(text_prompt("Hello."), ignore))
    with pytest.raises(ModelError, match="the stage takes TextPrompt or FeaturesPrompt, not str"):
        speaker.wait(speaker.acoustic.run("Hello.", ignore))


async def refusal_of(directory: Path | None = None, voices: tuple[str, ...] = ()) -> ConfigError:
    runner = HibariRunner(args("acoustic", directory=directory, voices=voices))
    with pytest.raises(ConfigError) as raised:
        await runner.start()
    assert not runner.healthy
    await runner.close()
    return raised.value


async def test_a_voice_whose_file_is_missing_is_not_downloaded() -> None:
    assert (await refusal_of(voices=("heart", "emma"))).file == str(packaged_voice() / "bf_emma.int8.onnx")


async def test_a_voice_that_does_not_exist_is_named() -> None:
    assert (await refusal_of(voices=("nobody",))).field == "voices"


async def test_a_file_that_is_no_voice_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hibari.onnx"
    assert (await refusal_of(tmp_path)).file == str(file)
    file.write_bytes(b"no model")
    assert (await refusal_of(tmp_path)).file == str(file)
    shutil.copy(packaged_voice() / "oov.onnx", file)
    assert (await refusal_of(tmp_path)).file == str(file)


async def test_voices_of_another_directory_speak(tmp_path: Path) -> None:
    shutil.copy(packaged_voice() / "hibari.onnx", tmp_path / "am_fenrir_v2.int8.onnx")
    runner = HibariRunner(args("acoustic", directory=tmp_path, voices=("fenrir",)))
    await runner.start()
    output = await runner.run(text_prompt("Hello.", voice="fenrir"), ignore)
    assert output.multimodal_outputs["lh"].shape[0] == 601
    await runner.close()


@pytest.mark.parametrize("component", [None, "talker"])
def test_a_stage_without_a_known_component_is_refused(component: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        HibariRunner(args(component))
    assert raised.value.field == "component"
