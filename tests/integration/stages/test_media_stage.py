"""A stage's media: what the ``chat`` processor gets from the wall, and what it says of media that do not decode."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.audio import decode_audio
from omni_jobs.media.image import decode_image
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.video import decode_video
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from tests import hostile
from tests.integration.media.test_media_wall import SLOW, SOON_S, UNBOUNDED, cpu_ticks, decoders_of, wait_for
from tests.oracles import samples
from workers.runners.ar.prompts import OmniTextPrompt
from workers.stages.stage import Stage

ROOT = Path(__file__).parents[3]
LIMITS = MediaLimits.of(Settings())


@pytest.fixture(scope="module")
def stage(tiny_checkpoint: Path) -> Iterator[Stage]:
    pipeline = load_pipelines(ROOT / "stage_configs")["qwen2_5_omni"]
    with MediaWall(Settings(decoders=1, decode_limit_s=600, **UNBOUNDED)) as wall:  # type: ignore[arg-type]
        yield Stage(pipeline, pipeline.stage("thinker"), tiny_checkpoint, wall)


def prompt_of(stage: Stage, *media: tuple[str, bytes]) -> OmniTextPrompt:
    parts: list[dict[str, Any]] = [{"type": kind, "media": number} for number, (kind, _) in enumerate(media)]
    request = {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}]}
    stage_input = stage.input_of(
        job_id="j", request=request, media=[data for _, data in media], upstream={}, seed=1, has_successors=False
    )
    prompt = stage.make_prompt(stage_input)
    assert isinstance(prompt, OmniTextPrompt)
    return prompt


def test_a_stage_gets_what_its_functions_give(stage: Stage) -> None:
    wav, png, mp4 = samples.audio(0.7, rate=44_100, channels=2), samples.image(90, 60, mode="RGBA"), samples.video(12)
    data = prompt_of(stage, ("image", png), ("audio", wav), ("video", mp4), ("image", png)).multi_modal_data
    [(sound, rate)] = data["audio"]
    assert (sound.tobytes(), rate) == (decode_audio(wav, 16_000, LIMITS).tobytes(), 16_000)
    assert [image.tobytes() for image in data["image"]] == [decode_image(png, LIMITS).tobytes()] * 2
    [(frames, metadata)] = data["video"]
    expected, described = decode_video(mp4, LIMITS)
    assert np.array_equal(frames, expected)
    assert metadata == described


def test_a_medium_that_does_not_decode_is_named(stage: Stage) -> None:
    with pytest.raises(InvalidRequest, match="does not decode") as caught:
        prompt_of(stage, ("image", samples.image()), ("image", samples.image()[:80]))
    assert (caught.value.field, caught.value.stage) == ("messages.0.content.2", "thinker")
    assert caught.value.retry_class is None  # it would go wrong again


def test_limits_hold_in_a_stage_as_well(tiny_checkpoint: Path) -> None:
    pipeline = load_pipelines(ROOT / "stage_configs")["qwen2_5_omni"]
    with MediaWall(Settings(decoders=1)) as wall:
        stage = Stage(pipeline, pipeline.stage("thinker"), tiny_checkpoint, wall)
        for kind, data in (
            ("image", hostile.jpeg_scan_bomb()),
            ("audio", hostile.flac_silence()),
            ("video", hostile.mp4_fragment_bomb()),
        ):
            with pytest.raises(RequestTooLarge) as caught:
                prompt_of(stage, (kind, data))
            assert caught.value.field == "messages.0.content.1"


def test_a_decoder_that_dies_fails_the_stage_run_alone(stage: Stage) -> None:
    assert stage.wall is not None
    prompt_of(stage, ("image", samples.image()))
    [decoder] = decoders_of(stage.wall)
    before = cpu_ticks(decoder)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(prompt_of, stage, ("image", SLOW))
        wait_for(lambda: cpu_ticks(decoder) > before + 10)
        waiting = threads.submit(prompt_of, stage, ("image", samples.image()))  # of another stage run
        os.kill(decoder, signal.SIGSEGV)
        with pytest.raises(InvalidRequest, match="SIGSEGV") as caught:
            slow.result(SOON_S)
        assert (caught.value.field, caught.value.stage) == ("messages.0.content.1", "thinker")
        assert waiting.result(SOON_S).multi_modal_data["image"][0].size == (64, 48)
