"""Wan's prompts: one description, cleaned and tokenized as by Diffusers; all else is refused with its field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from omni_jobs.errors import InvalidRequest
from omni_jobs.prompts.renderers import families_of, load_renderer
from workers.models.wan.parameters import FilmParameters
from workers.models.wan.prompts import WanPicturePromptRenderer, WanPromptRenderer, cleaned


@pytest.fixture(scope="module")
def checkpoint(tiny_wans: Callable[[int], Path]) -> Path:
    return tiny_wans(0)


@pytest.fixture(scope="module")
def renderer(checkpoint: Path) -> WanPromptRenderer:
    loaded = load_renderer("wan", checkpoint)
    assert isinstance(loaded, WanPromptRenderer)
    return loaded


def user(content: Any, **parameters: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "parameters": parameters}


@pytest.mark.parametrize("text", ["a red boat", "  two\n lines &amp;amp; more ", "海上的一只小船 ⛵", "a < b &lt; c"])
def test_tokens_are_those_of_diffusers(renderer: WanPromptRenderer, checkpoint: Path, text: str) -> None:
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(checkpoint / "tokenizer")(prompt_clean(text)).input_ids
    assert cleaned(text) == prompt_clean(text)
    assert renderer.encode(user(text)) == renderer.encode_text(text) == ids
    assert renderer.count_tokens(user(text), ()) == len(ids)
    assert renderer.encode(user([{"type": "text", "text": text[:2]}, {"type": "text", "text": text[2:]}])) == ids


def test_diffusers_layout_decides_the_family(checkpoint: Path) -> None:
    assert families_of(checkpoint) == {"wan"}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"messages": [{"role": "system", "content": "x"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]}, "messages.1"),
        (user("  &nbsp; "), "messages.0.content"),
        (user("the end</s>"), "messages.0.content"),
        (user("the end&lt;/s&gt;"), "messages.0.content"),
        (user("x", encode={"negative_prompt": "<pad>"}), "stages.encode.negative_prompt"),
        (user([{"type": "image", "media": 0}, {"type": "text", "text": "x"}]), "messages.0.content.0"),
    ],
)
def test_what_is_no_description_is_refused_with_its_field(
    renderer: WanPromptRenderer, request_: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        renderer.check(request_)
    assert refused.value.field == field


def test_a_picture_that_is_missing_is_named(tiny_wan_i2vs: Callable[[int], Path]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        WanPicturePromptRenderer(tiny_wan_i2vs(0)).check(user("a fox"))
    assert caught.value.field == "messages.0.content.image_url"


def test_texts_that_are_too_long_are_counted(renderer: WanPromptRenderer) -> None:
    assert renderer.prompt_limit([]) == 512
    assert renderer.count_tokens(user("x" * 510), ()) == 512
    assert renderer.count_tokens(user("x" * 511), ()) == 513
    with pytest.raises(InvalidRequest, match="has 513 tokens") as refused:
        renderer.count_tokens(user("x", encode={"negative_prompt": "x" * 511}), ())
    assert refused.value.field == "stages.encode.negative_prompt"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_frames": 1}, "from 5 to 161; the nearest is 5"),
        ({"num_frames": 10_000}, "the nearest is 161"),
        ({"num_frames": 80}, "the nearest is 81"),
        ({"num_frames": 81.0}, "integer"),
        ({"seconds": 0.1}, "greater"),
        ({"seconds": 11.0}, "less"),
        ({"width": 833}, "the nearest are 832 and 848"),
        ({"height": 1296}, "the nearest is 1280"),
        ({"steps": 0}, "greater"),
        ({"guidance_scale_2": 0.5}, "greater"),
    ],
)
def test_a_video_that_cannot_be_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FilmParameters(**parameters)


@pytest.mark.parametrize(("seconds", "frames"), [(None, 81), (0.25, 5), (4.0, 65), (5.0, 81), (10.0, 161), (1.1, 17)])
def test_seconds_are_frames(seconds: float | None, frames: int) -> None:
    parameters = FilmParameters(seconds=seconds, width=64, height=32)
    assert parameters.frames == frames
    assert parameters.video_pixels == frames * 64 * 32
