"""A stage makes a picture, and a stage makes a video: of colour bars, or of the pictures that the request brings.

A picture that is made of others shows them side by side in inverted colours. A video that starts from a picture moves
it to the right in place of the bars. Below stands the strip of the test card, by which text and seed can be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from omni_jobs.errors import OutOfMemory
from omni_jobs.prompts.messages import last_user_text, picture_parts
from workers.runners.echo.card import colour_bars, emerging, moved, side_by_side, strip, with_strip
from workers.runners.echo.pace import StepPace
from workers.runners.echo.parameters import LEAST_SIDE, MOST_SIDE, SIDE, BarsParameters, MovingBarsParameters
from workers.runners.runner import ProgressSink
from workers.stages.flow_processor import FlowProcessor
from workers.stages.types import OmniModelRunnerOutput, Progress, StageInput

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    from workers.runners.echo.threads import Threads

_ROUND_S = 4  # seconds in which a video's picture moves by its whole width


class BarsPrompt(NamedTuple):
    """The engine prompt of a stage that makes a picture.

    sources  pictures uint8 [height, W, 3] whose widths add up to ``width``; none: the bars
    previews whether progress shows previews
    """

    text: str
    seed: int
    height: int
    width: int
    sources: Sequence[NDArray[Any]]
    steps: int
    delay_s: float
    previews: bool


class MovingBarsPrompt(NamedTuple):
    """The engine prompt of a stage that makes a video, of which ``card`` is the first frame's picture."""

    card: BarsPrompt
    frames: int
    fps: int


class BarsProcessor(FlowProcessor):
    """Decodes and scales the pictures of a job's messages. Its name in a stage config is ``bars``."""

    def __call__(self, stage_input: StageInput[BarsParameters]) -> BarsPrompt:
        """Return the prompt.

        Raises InvalidRequest or RequestTooLarge naming the picture that does not decode, DecodersUnavailable, and
        ConfigError for pictures without a wall.
        """
        pictures = _decoded(stage_input)
        width, height = _fitted(*pictures[0].size) if pictures else (SIDE, SIDE)
        width, height = stage_input.parameters.width or width, stage_input.parameters.height or height
        ends = [width * number // len(pictures) for number in range(len(pictures) + 1)] if pictures else []
        sources = [
            _scaled(picture, end - begin, height)
            for picture, begin, end in zip(pictures, ends[:-1], ends[1:], strict=True)
        ]
        return _prompt(stage_input, height, width, sources)


class MovingBarsProcessor(FlowProcessor):
    """Decodes and scales the picture of a job's messages. Its name in a stage config is ``moving_bars``."""

    def __call__(self, stage_input: StageInput[MovingBarsParameters]) -> MovingBarsPrompt:
        """Return the prompt. Raises as ``BarsProcessor`` does."""
        parameters = stage_input.parameters
        height, width = parameters.height, parameters.width
        sources = [_scaled(picture, width, height) for picture in _decoded(stage_input)[:1]]
        return MovingBarsPrompt(_prompt(stage_input, height, width, sources), parameters.frames, parameters.fps)


def _prompt(
    stage_input: StageInput[BarsParameters] | StageInput[MovingBarsParameters],
    height: int,
    width: int,
    sources: Sequence[NDArray[Any]],
) -> BarsPrompt:
    parameters = stage_input.parameters
    return BarsPrompt(
        text=last_user_text(stage_input.request),
        seed=stage_input.seed,
        height=height,
        width=width,
        sources=sources,
        steps=parameters.steps,
        delay_s=parameters.delay_s,
        previews=stage_input.previews,
    )


def _decoded(stage_input: StageInput[Any]) -> list[Image.Image]:
    pictures = []
    for field, number in picture_parts(stage_input.request.get("messages", ())):
        with stage_input.wall_for(field) as wall:
            pictures.append(wall.decode_image(stage_input.media[number]))
    return pictures


def _fitted(width: int, height: int) -> tuple[int, int]:
    """Return a picture's size in its ratio, within the sides that a picture may have as far as the ratio lets."""
    scale = min(1.0, MOST_SIDE / max(width, height))
    return max(LEAST_SIDE, round(width * scale)), max(LEAST_SIDE, round(height * scale))


def _scaled(picture: Image.Image, width: int, height: int) -> NDArray[Any]:
    return np.asarray(picture if picture.size == (width, height) else picture.resize((width, height)))


async def bars(prompt: BarsPrompt, on_thread: Threads, progress: ProgressSink) -> OmniModelRunnerOutput:
    """Return ``pixels``, uint8 [H, W, 3], with progress in steps, and previews if they are asked for."""
    make = (
        partial(side_by_side, prompt.sources) if prompt.sources else partial(colour_bars, prompt.height, prompt.width)
    )
    picture = await on_thread(make)
    below = strip(prompt.text, prompt.seed, prompt.height, prompt.width)
    pixels = await on_thread(partial(with_strip, picture, below))
    await _step(prompt, pixels, on_thread, progress)
    return OmniModelRunnerOutput(multimodal_outputs={"pixels": pixels})


async def moving_bars(prompt: MovingBarsPrompt, on_thread: Threads, progress: ProgressSink) -> OmniModelRunnerOutput:
    """Return ``pixels``, uint8 [F, H, W, 3], and their ``frame_rate``, with progress as ``bars`` has it.

    Raises OutOfMemory for more frames than the memory holds.
    """
    card = prompt.card
    picture = card.sources[0] if card.sources else await on_thread(partial(colour_bars, card.height, card.width))
    below = strip(card.text, card.seed, card.height, card.width)
    await _step(card, with_strip(picture, below), on_thread, progress)
    pixels = _empty(prompt)
    for first in range(0, prompt.frames, prompt.fps):
        await on_thread(partial(_move, prompt, picture, below, pixels, first))
    return OmniModelRunnerOutput(multimodal_outputs={"pixels": pixels}, values={"frame_rate": prompt.fps})


def _empty(prompt: MovingBarsPrompt) -> NDArray[Any]:
    shape = (prompt.frames, prompt.card.height, prompt.card.width, 3)
    try:
        return np.empty(shape, np.uint8)
    except MemoryError as error:
        raise OutOfMemory(f"there is too little memory for {shape[0]} frames of {shape[2]}×{shape[1]}") from error


def _move(
    prompt: MovingBarsPrompt, picture: NDArray[Any], below: NDArray[Any], pixels: NDArray[Any], first: int
) -> None:
    """Write a second of frames, from the number ``first`` on."""
    for number in range(first, min(first + prompt.fps, prompt.frames)):
        columns = prompt.card.width * number // (_ROUND_S * prompt.fps)
        pixels[number] = with_strip(moved(picture, columns), below)


async def _step(prompt: BarsPrompt, pixels: NDArray[Any], on_thread: Threads, progress: ProgressSink) -> None:
    """Take the prompt's steps, after each of which more of the picture shows."""
    pace = StepPace(prompt.delay_s, prompt.steps)
    progress(Progress(0, prompt.steps, "steps"))
    preview: NDArray[Any] | None = None
    for step in range(1, prompt.steps + 1):
        await pace.wait_for(step)
        if prompt.previews:
            preview = await on_thread(partial(emerging, pixels, step / prompt.steps, prompt.seed))
        progress(Progress(step, prompt.steps, "steps", picture=preview))
