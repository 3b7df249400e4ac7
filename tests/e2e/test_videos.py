"""Wan through the queue, on a tiny checkpoint, every stage real: its videos are those of Diffusers' own pipeline."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from openai import BadRequestError, OpenAI

from omni_jobs.client import Client
from omni_jobs.errors import InvalidRequest
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from tests.oracles.wan import WanReference

pytestmark = [pytest.mark.timeout(400)]

TEXT = "a red boat on a calm sea"


@pytest.fixture(scope="module")
def stack(tiny_wans: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("videos"), models={"wan": tiny_wans(0)})
    with EmbeddedStack(settings, pipelines=["wan"]) as started:
        yield started


@pytest.fixture(scope="module")
def client(stack: EmbeddedStack) -> Iterator[Client]:
    with Client(stack.url) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(tiny_wans: Callable[[int], Path]) -> WanReference:
    return WanReference(tiny_wans(0))


def request(seed: int = 0, negative: str | None = "", fps: float = 16.0, **denoise: Any) -> dict[str, Any]:
    given = {"width": 64, "height": 48, "num_frames": 9, "steps": 6} | denoise
    return {
        "model": "wan",
        "messages": [{"role": "user", "content": TEXT}],
        "modalities": ["video"],
        "seed": seed,
        "stages": {"encode": {"negative_prompt": negative}, "denoise": given, "decode": {"fps": fps}},
    }


def frames_of(data: bytes) -> tuple[NDArray[np.int32], float]:
    """Return the frames of a video, int32 [F, H, W, 3], and how many are played a second."""
    with av.open(io.BytesIO(data)) as video:
        assert not video.streams.audio
        (stream,) = video.streams.video
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(stream)]
        return np.stack(frames).astype(np.int32), float(stream.average_rate or 0)


def ended(client: Client, job: JobView) -> JobView:
    job = client.wait(job.id, timeout=200)
    assert job.status is JobState.COMPLETED, job.error
    return job


def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    assert one.shape == other.shape
    return float(np.abs(one - other).mean())


def test_videos_are_those_of_the_reference(client: Client, reference: WanReference) -> None:
    """Under way together, of several sizes and lengths."""
    cases: list[dict[str, Any]] = [
        {"seed": 1},
        {"seed": 2, "negative": "rain, fog", "fps": 24.0, "guidance_scale": 2.5, "guidance_scale_2": 5.0},
        {"seed": 3, "negative": None, "width": 32, "height": 96, "num_frames": 13, "steps": 3},
    ]
    jobs = [client.submit({**request(**case), "previews": True}) for case in cases]
    expected = []
    for case in cases:
        given = {"width": 64, "height": 48, "num_frames": 9, "steps": 6} | case
        negative = given.get("negative", "")
        latents = reference.latents(
            reference.embeds(TEXT),
            None if negative is None else reference.embeds(negative),
            scales=(given.get("guidance_scale", 4.0), given.get("guidance_scale_2", 3.0)),
            seed=given["seed"],
            num_inference_steps=given["steps"],
            **{name: given[name] for name in ("width", "height", "num_frames")},
        )
        expected.append(reference.pixels(latents).numpy().astype(np.int32))
    for case, job, pixels in zip(cases, jobs, expected, strict=True):
        job = ended(client, job)
        frames, rate = frames_of(client.artifact(job, "video.mp4"))
        assert rate == case.get("fps", 16.0)
        # H.264 loses a good part of noise. Another seed's video is 1.4 times as far as the mean colour is.
        flat = np.broadcast_to(pixels.mean(axis=(0, 1, 2)), pixels.shape)
        assert distance(frames, pixels) < 0.6 * distance(flat, pixels)


@pytest.mark.parametrize(
    ("stage", "parameters", "field"),
    [
        ("denoise", {"num_frames": 1}, "stages.denoise.num_frames"),
        ("denoise", {"num_frames": 10_000}, "stages.denoise.num_frames"),
        ("denoise", {"width": 65}, "stages.denoise.width"),
        ("denoise", {"height": 8}, "stages.denoise.height"),
        ("denoise", {"seconds": 60.0}, "stages.denoise.seconds"),
        ("denoise", {"num_frames": 33, "seconds": 2.0}, "stages.denoise.num_frames"),
        ("decode", {"fps": 0.0}, "stages.decode.fps"),
        ("encode", {"negative_prompt": "x" * 511}, "stages.encode.negative_prompt"),
    ],
)
def test_a_video_that_cannot_be_is_refused_at_submit(
    client: Client, stage: str, parameters: dict[str, Any], field: str
) -> None:
    body = request()
    body["stages"][stage] |= parameters
    with pytest.raises(InvalidRequest) as refused:
        client.submit(body)
    assert refused.value.field == field


def test_openais_client_makes_a_video(stack: EmbeddedStack) -> None:
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none") as openai:
        made = openai.videos.create_and_poll(
            model="wan",
            prompt=TEXT,
            size="64x48",  # type: ignore[arg-type]
            seconds="0.5",  # type: ignore[arg-type]
            extra_body={"num_inference_steps": 2, "seed": 5, "fps": 8},
        )
        assert made.status == "completed", made.error
        frames, rate = frames_of(openai.videos.download_content(made.id).read())
    assert frames.shape == (9, 48, 64, 3)
    assert rate == 8


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"size": "833x2000"},
            "size: width: must be a multiple of 16 from 16 to 1280; the nearest are 832 and 848; "
            "height: must be a multiple of 16 from 16 to 1280; the nearest is 1280",
        ),
        ({"seconds": "12"}, "seconds: must be less than or equal to 10"),
        (
            {"seconds": "2", "extra_body": {"num_frames": 33}},
            "num_frames: given, and seconds as well: a job sets one of the two",
        ),
        (
            {"seconds": "2", "extra_body": {"stages": {"denoise": {"num_frames": 33}}}},
            "stages.denoise.num_frames: given, and seconds as well: a job sets one of the two",
        ),
    ],
)
def test_what_is_refused_of_openais_client_is_named_and_said(
    stack: EmbeddedStack, more: dict[str, Any], message: str
) -> None:
    with OpenAI(base_url=f"{stack.url}/v1", api_key="none") as openai, pytest.raises(BadRequestError) as refused:
        openai.videos.create(model="wan", prompt=TEXT, **more)
    assert refused.value.param == message.partition(":")[0]
    assert refused.value.message.endswith(f" - {message}")
