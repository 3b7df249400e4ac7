"""Pictures of the real pipelines with the stock client: tiny checkpoints, every stage and engine real."""

import io
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests.integration.openai.stock import stock_client
from tests.oracles import samples

pytest.importorskip("vllm")

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def picture(data: str) -> Image.Image:
    return Image.open(io.BytesIO(b64decode(data, validate=True)))


def test_qwen_image_draws_and_shows_how(tiny_qwen_images: Callable[[int], Path], tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, models={"qwen_image": tiny_qwen_images(0)}, progress_every_s=0.1)
    asked: dict[str, Any] = {"model": "qwen_image", "prompt": "a boat", "size": "64x48"}
    more = {"seed": 3, "num_inference_steps": 6, "true_cfg_scale": 2.0, "negative_prompt": "people"}
    with EmbeddedStack(settings, pipelines=["qwen_image"]) as stack, stock_client(stack.url) as stock:
        drawn = stock.client.images.generate(**asked, n=2, extra_body=more)
        slow = more | {"num_inference_steps": 200}
        *previews, last = list(stock.client.images.generate(**asked, stream=True, partial_images=2, extra_body=slow))
    assert [picture(made.b64_json).size for made in drawn.data] == [(64, 48)] * 2
    assert drawn.data[0].b64_json != drawn.data[1].b64_json
    assert drawn.usage.input_tokens == drawn.usage.total_tokens > 0
    assert [event.partial_image_index for event in previews] == list(range(len(previews)))
    assert 1 <= len(previews) <= 2
    assert picture(previews[0].b64_json).format == "JPEG"
    assert picture(last.b64_json).size == (64, 48)
    assert last.usage.input_tokens * 2 == drawn.usage.input_tokens


def test_qwen_image_edit_edits(tiny_qwen_image_edits: Callable[[int], Path], tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, models={"qwen_image_edit": tiny_qwen_image_edits(0)})
    asked: dict[str, Any] = {"model": "qwen_image_edit", "prompt": "make it blue", "size": "64x48"}
    more = {"seed": 3, "num_inference_steps": 2, "stages": {"sources": {"pixels": 4096}}}
    with EmbeddedStack(settings, pipelines=["qwen_image_edit"]) as stack, stock_client(stack.url) as stock:
        source = ("a.png", samples.image(64, 48))
        edited = stock.client.images.edit(**asked, image=source, output_format="webp", extra_body=more)
    assert picture(edited.data[0].b64_json).size == (64, 48)
    assert (edited.output_format, edited.usage.input_tokens_details) == ("webp", None)
    assert edited.usage.input_tokens > 0


def test_glm_image_draws_and_edits(tiny_glm_images: Callable[[int], Path], tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, models={"glm_image": tiny_glm_images(0)})
    asked: dict[str, Any] = {"model": "glm_image", "prompt": "a boat", "size": "96x64"}
    more = {"seed": 3, "num_inference_steps": 2, "guidance_scale": 1.5}
    with EmbeddedStack(settings, pipelines=["glm_image"]) as stack, stock_client(stack.url) as stock:
        drawn = stock.client.images.generate(**asked, extra_body=more)
        edited = stock.client.images.edit(**asked, image=("a.png", samples.image(64, 64)), extra_body=more)
    assert picture(drawn.data[0].b64_json).size == picture(edited.data[0].b64_json).size == (96, 64)
    assert drawn.usage.output_tokens > 0
    assert drawn.usage.input_tokens_details.text_tokens == drawn.usage.input_tokens
    assert edited.usage.input_tokens > 0


def test_upscale_enlarges_with_real_weights(tmp_path: Path) -> None:
    with (
        EmbeddedStack(Settings(data_dir=tmp_path), pipelines=["upscale"]) as stack,
        stock_client(stack.url) as stock,
    ):
        source = ("a.png", samples.image(64, 48))
        edited = stock.client.images.edit(model="upscale", image=source, prompt="", output_format="webp")
        error = stock.error(
            openai.BadRequestError, lambda: stock.client.images.generate(model="upscale", prompt="a boat")
        )
    assert picture(edited.data[0].b64_json).size == (256, 192)
    assert (edited.output_format, edited.usage) == ("webp", None)
    assert (error.param, "/v1/images/edits" in error.message) == ("prompt", True)
