"""Videos that begin with a picture through OmniLLM, every stage real, against Diffusers' own pipeline."""

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from omni_jobs.errors import InvalidRequest
from tests.oracles.wan_i2v import WanPictureReference
from tests.source_pictures import drawn
from workers.offline import OmniLLM, OmniOutput

TEXT = "the boat turns"


@pytest.fixture(scope="module")
def checkpoint(tiny_wan_i2vs: Callable[[int], Path]) -> Path:
    return tiny_wan_i2vs(0)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[OmniLLM]:
    with OmniLLM("wan_i2v", model=checkpoint) as started:
        yield started


def request(pictures: Sequence[Image.Image], seed: int = 0, **begin: Any) -> dict[str, Any]:
    parts = []
    for picture in pictures:
        file = io.BytesIO()
        picture.save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {
        "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": TEXT}]}],
        "modalities": ["video"],
        "seed": seed,
        "stages": {"begin": {"width": 64, "height": 48, "num_frames": 9} | begin, "denoise": {"steps": 4}},
    }


def frames_of(data: bytes | memoryview) -> NDArray[np.int32]:
    with av.open(io.BytesIO(data)) as video:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]).astype(np.int32)


def test_videos_are_those_of_the_reference(llm: OmniLLM, checkpoint: Path) -> None:
    reference = WanPictureReference(checkpoint)
    pictures = [drawn(96, 128, seed) for seed in range(2)]
    outputs = llm.generate([request([picture], seed) for seed, picture in enumerate(pictures)])
    for seed, (picture, output) in enumerate(zip(pictures, outputs, strict=True)):
        embeds = [reference.plain.embeds(text) for text in (TEXT, "")]
        latents = reference.latents(
            *embeds, picture, scales=(3.5, 3.5), seed=seed, height=48, width=64, num_frames=9, num_inference_steps=4
        )
        assert isinstance(output, OmniOutput), output
        (artifact,) = output.artifacts.values()
        expected = reference.plain.pixels(latents).numpy().astype(np.int32)
        frames = frames_of(artifact.data)
        assert frames.shape == expected.shape
        # H.264 loses a good part of noise. Another seed's video is 1.4 times as far as the mean colour is.
        flat = expected.mean(axis=(0, 1, 2))
        assert np.abs(frames - expected).mean() < 0.6 * np.abs(flat - expected).mean()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (request([]), "requests.0.messages.0.content.image_url"),
        (request([drawn(32, 32)] * 2), "requests.0.messages.0.content.1"),
        (request([drawn(32, 32)], num_frames=1), "requests.0.stages.begin.num_frames"),
        (request([drawn(32, 32)], height=47), "requests.0.stages.begin.height"),
    ],
)
def test_a_bad_request_is_refused_before_any_stage_runs(llm: OmniLLM, given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        llm.generate([given])
    assert refused.value.field == field
