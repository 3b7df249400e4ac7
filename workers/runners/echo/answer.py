"""A stage answers with the text of the request, and with what each of its media holds.

The answer is the last user message, and a line for each medium of all messages: of a sound what ``heard`` says, of a
picture or a video its size and its mean colour. So a test can tell that a text or an upload has arrived whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from omni_jobs.prompts.messages import last_user_text, parts_of
from workers.runners.echo.hearing import HEARD_HZ, heard
from workers.runners.echo.pace import StepPace
from workers.runners.echo.parameters import AnswerParameters
from workers.runners.growing_text import GrowingText
from workers.runners.runner import ProgressSink
from workers.stages.flow_processor import FlowProcessor
from workers.stages.types import Artifact, OmniModelRunnerOutput, StageInput
from workers.transcripts.subtitles import MEDIA_TYPES, subtitles
from workers.transcripts.transcript import Transcript, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omni_jobs.pipelines.stage_config import StageConfig
    from workers.runners.echo.threads import Threads
    from workers.stages.engine_args import OmniModelConfig

_WORD = re.compile(r"\s*\S+")


class BroughtSound(NamedTuple):
    """A sound of a request: its number among the media, and its samples, float32 [T] at ``HEARD_HZ``."""

    media: int
    samples: NDArray[Any]


class AnswerPrompt(NamedTuple):
    """The engine prompt of a stage that answers.

    stage  its name, by which its artifacts are called
    text   the last user message
    media  what the request brings, in its order: a sound, or the line that stands for a picture or a video
    """

    stage: str
    text: str
    media: Sequence[BroughtSound | str]
    parameters: AnswerParameters


class AnswerProcessor(FlowProcessor):
    """Decodes the media of a job's messages. Its name in a stage config is ``answer``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Note the stage's name, by which its artifacts are called."""
        super().__init__(stage, model)
        self._stage = stage.name

    def __call__(self, stage_input: StageInput[AnswerParameters]) -> AnswerPrompt:
        """Return the prompt.

        Raises InvalidRequest or RequestTooLarge naming the medium that does not decode, DecodersUnavailable, and
        ConfigError for media without a wall.
        """
        return AnswerPrompt(
            self._stage,
            last_user_text(stage_input.request),
            [_brought(stage_input, part, field) for field, part in parts_of(stage_input.request)],
            stage_input.parameters,
        )


def _brought(stage_input: StageInput[Any], part: Mapping[str, Any], field: str) -> BroughtSound | str:
    number = part["media"]
    data = stage_input.media[number]
    with stage_input.wall_for(field) as wall:
        if part["type"] == "audio":
            return BroughtSound(number, wall.decode_audio(data, HEARD_HZ))
        if part["type"] == "image":
            picture = wall.decode_image(data)
            return f"a picture of {picture.width} x {picture.height} pixels, {_mean_colour(np.asarray(picture))}"
        frames, metadata = wall.decode_video(data)
        size = f"{metadata['width']} x {metadata['height']} pixels"
        return f"a video of {metadata['duration']:.2f} s, {size}, {_mean_colour(frames)}"


def _mean_colour(pixels: NDArray[Any]) -> str:
    red, green, blue = np.rint(pixels.reshape(-1, 3).mean(axis=0)).astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"


async def answer(prompt: AnswerPrompt, on_thread: Threads, progress: ProgressSink) -> OmniModelRunnerOutput:
    """Return the answer, cut as the parameters say, with progress in words and the text so far.

    Its result has the ``transcripts`` of the sounds as ``workers.transcripts.transcript.shown``. Its artifacts are the
    ``subtitles`` that are asked for, named by the stage: ``answer.srt``. Its usage counts words as tokens.
    """
    parameters = prompt.parameters
    lines = [prompt.text] if prompt.text.strip() else []
    transcripts: list[Transcript] = []
    for medium in prompt.media:
        if isinstance(medium, str):
            lines.append(medium)
            continue
        segments = await on_thread(partial(heard, medium.samples, words=parameters.words))
        duration_s = len(medium.samples) / HEARD_HZ
        transcripts.append(Transcript(medium.media, parameters.language, duration_s, segments))
        lines.append(transcripts[-1].text)
    text, tokens, is_cut = _cut("\n".join(lines), parameters)
    if parameters.delay_s:
        await _say(text, parameters.delay_s, progress)
    return OmniModelRunnerOutput(
        text=text,
        finish_reason="length" if is_cut else "stop",
        result={"transcripts": shown(transcripts)} if transcripts else {},
        usage={"prompt_tokens": len(prompt.text.split()), "completion_tokens": tokens},
        artifacts=[
            Artifact(f"{prompt.stage}.{format}", MEDIA_TYPES[format], subtitles(transcripts, format), "text")
            for format in parameters.subtitles
        ],
    )


def _cut(text: str, parameters: AnswerParameters) -> tuple[str, int, bool]:
    """Return a text up to its first stop and its last word that is let, its words, and whether words are missing."""
    stops = [at for stop in parameters.stop if (at := text.find(stop)) >= 0]
    text = text[: min(stops, default=len(text))]
    most = parameters.max_tokens
    if most is None:
        return text, len(text.split()), False
    end = 0
    for number, word in enumerate(_WORD.finditer(text)):
        if number == most:
            return text[:end], most, True
        end = word.end()
    return text, len(text.split()), False


async def _say(text: str, delay_s: float, progress: ProgressSink) -> None:
    words = _WORD.findall(text)
    growing = GrowingText(progress, len(words))
    pace = StepPace(delay_s, len(words))
    for number, word in enumerate(words, 1):
        growing.add(word)
        await pace.wait_for(number)
    growing.end()
