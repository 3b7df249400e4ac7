"""Pictures through OmniLLM: GLM-Image's tiny checkpoint, every stage real, against Diffusers' own pipeline."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.oracles.glm_image import GlmImageReference
from tests.oracles.samples import image_part
from tests.services.checkpoint import TinyCheckpoints
from tests.source_pictures import drawn
from workers.offline import OmniLLM, OmniOutput

pytest.importorskip("vllm")


def request(
    text: str, height: int, width: int, *, seed: int, temperature: float = 0.0, **denoise: Any
) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "modalities": ["image"],
        "seed": seed,
        "stages": {"generate": {"height": height, "width": width, "temperature": temperature}, "denoise": denoise},
    }


EDIT = "Join them, and write 'New'"


def png(source: Image.Image) -> bytes:
    file = io.BytesIO()
    source.save(file, "PNG")
    return file.getvalue()


def picture(output: Any) -> np.ndarray[Any, Any]:
    assert isinstance(output, OmniOutput), output
    (artifact,) = output.artifacts.values()
    return np.asarray(Image.open(io.BytesIO(artifact.data)))


@pytest.mark.long  # its stages alone are shown by test_glm_image_tokens, _pictures and _edits
@pytest.mark.timeout(900)
def test_pictures_are_those_of_the_reference(tiny_glm_images: TinyCheckpoints) -> None:
    checkpoint = tiny_glm_images(0)
    cases: list[tuple[str, int, int, int, dict[str, Any]]] = [
        ("A sign 'Open' above a door", 64, 96, 1, {"steps": 4}),
        ("海上的一只小船", 64, 96, 2, {"steps": 3, "guidance_scale": 2.5}),
        ("x", 128, 64, 3, {"steps": 2, "guidance_scale": 1.0}),
    ]
    requests = [request(text, height, width, seed=seed, **options) for text, height, width, seed, options in cases]
    sampled = request("A lighthouse", 64, 64, seed=4, temperature=0.9, steps=2)
    sources = [drawn(100, 64, 1), drawn(64, 96, 2)]  # the first is shrunk to 96 x 64 pixels
    edit = request(EDIT, 64, 96, seed=5, steps=3)
    edit["messages"][0]["content"] = [*map(image_part, map(png, sources)), {"type": "text", "text": EDIT}]
    del edit["stages"]["generate"]["height"], edit["stages"]["generate"]["width"]
    with OmniLLM("glm_image", model=checkpoint) as llm:
        *greedy, one, other, edited = llm.generate([*requests, sampled, sampled, edit])
    assert np.abs(picture(one).astype(int) - picture(other)).max() <= 1  # their batches differ
    assert picture(one).shape == (64, 64, 3)
    reference = GlmImageReference(checkpoint)
    assert picture(edited).shape == (96, 64, 3)
    token_ids = torch.tensor(reference.tokens(EDIT, 96, 64, sources))
    expected = reference.picture(EDIT, token_ids, 96, 64, seed=5, pictures=sources, num_inference_steps=3)
    assert np.abs(picture(edited).astype(int) - expected).max() <= 1
    for (text, height, width, seed, options), output in zip(cases, greedy, strict=True):
        written = reference.tokens(text, height, width)
        token_ids = torch.tensor(written[-(height // 32 * width // 32) :])
        steps, guidance = options["steps"], options.get("guidance_scale", 1.5)
        expected = reference.picture(
            text, token_ids, height, width, seed=seed, num_inference_steps=steps, guidance_scale=guidance
        )
        assert isinstance(output, OmniOutput)
        assert output.result["usage"]["generate"]["completion_tokens"] == len(written)
        assert picture(output).shape == expected.shape
        assert np.abs(picture(output).astype(int) - expected).max() <= 1
