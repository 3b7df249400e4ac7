"""What GLM-Image's prompts are; and a request that says what it may not, which is refused with its field."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.prompts import Renderers, families_of, load_renderer
from omni_jobs.requests.admission import AdmittedRequest, admit
from omni_jobs.settings import Settings
from tests.services.checkpoint import TinyCheckpoints
from workers.models.glm_image.glyphs import glyph_texts
from workers.models.glm_image.grids import LARGEST, MOST_TOKENS, PIXELS, SMALLEST, grids_of
from workers.models.glm_image.prompts import GlmImagePromptRenderer

CONFIGS = Path(__file__).parents[4] / "stage_configs"


@pytest.fixture(scope="module")
def checkpoint(tiny_glm_images: TinyCheckpoints) -> Path:
    return tiny_glm_images(0)


@pytest.fixture(scope="module")
def renderer(checkpoint: Path) -> GlmImagePromptRenderer:
    loaded = load_renderer("glm_image", checkpoint)
    assert isinstance(loaded, GlmImagePromptRenderer)
    return loaded


@pytest.fixture(scope="module")
def processor(checkpoint: Path) -> Any:
    from transformers import GlmImageProcessor

    return GlmImageProcessor.from_pretrained(checkpoint / "processor")


@pytest.fixture(scope="module")
def pipelines() -> Pipelines:
    return load_pipelines(CONFIGS)


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


# As the reference

SIDES = st.integers(SMALLEST // PIXELS, LARGEST // PIXELS).map(lambda tokens: tokens * PIXELS)


@given(height=SIDES, width=SIDES)
def test_grids_are_those_of_the_reference(processor: Any, height: int, width: int) -> None:
    rows, columns, preview_rows, preview_columns = processor._get_target_shape(height=height, width=width)
    grids = grids_of(height, width)
    assert grids == ((preview_rows, preview_columns), (rows, columns))
    assert min(grids.preview) >= 1
    assert grids.tokens <= MOST_TOKENS


@pytest.mark.parametrize("text", ["A lighthouse", "海上的一只小船 ⛵", " {} 'x' ", "line\n\nline", "e\u0301"])
@pytest.mark.parametrize("size", [(64, 64), (1024, 768), (64, 2048)])
def test_the_tokens_are_those_of_the_reference(
    renderer: GlmImagePromptRenderer, processor: Any, text: str, size: tuple[int, int]
) -> None:
    expected = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "text", "text": text}]}],
        tokenize=True,
        return_dict=True,
        processor_kwargs={"target_h": size[0], "target_w": size[1]},
    )["input_ids"]
    ids = [*renderer.encode(user(text)), *renderer.encode_grids(grids_of(*size))]
    assert ids == [int(token) for token in expected[0]]
    parts = [{"type": "text", "text": text[:1]}, {"type": "text", "text": text[1:]}]
    assert renderer.encode(user(parts)) == renderer.encode(user(text))
    assert renderer.count_tokens(user(text), ()) >= len(ids)


@given(prompt=st.text(st.sampled_from("ab '\"“”「」"), max_size=30))
def test_glyph_texts_are_those_of_the_reference(prompt: str) -> None:
    from diffusers import GlmImagePipeline

    assert [glyph_texts(prompt)] == GlmImagePipeline.get_glyph_texts(None, prompt)


def test_diffusers_layout_decides_the_family(checkpoint: Path) -> None:
    assert families_of(checkpoint) == {"glm_image"}


def test_a_checkpoint_without_a_token_that_begins_a_picture_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    for part in ("processor", "vision_language_encoder"):
        (tmp_path / part).mkdir()
        for file in (checkpoint / part).glob("*.js*n*"):
            (tmp_path / part / file.name).write_bytes(file.read_bytes())
    (tmp_path / "processor" / "chat_template.jinja").write_text("{{ messages[0].content[0].text }}")
    settings = tmp_path / "processor" / "tokenizer_config.json"
    settings.write_text(re.sub(r'"bos_token"', '"begin"', settings.read_text()))
    with pytest.raises(ConfigError) as refused:
        GlmImagePromptRenderer(tmp_path)
    assert refused.value.field == "bos_token"


# Requests


def admitted(pipelines: Pipelines, checkpoint: Path, body: dict[str, Any]) -> AdmittedRequest:
    settings = Settings(models={"glm_image": checkpoint})
    return admit({"model": "glm_image", **body}, pipelines, settings, Renderers(settings))


def test_a_request_is_admitted(pipelines: Pipelines, checkpoint: Path) -> None:
    stages = {"generate": {"width": 96, "height": 64}, "denoise": {"steps": 4, "guidance_scale": 2}}
    found = admitted(pipelines, checkpoint, {**user("A sign 'Open'"), "stages": stages})
    assert found.modalities == ("image",)
    assert [stage.name for stage in found.stages] == ["generate", "denoise", "decode"]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ([{"role": "user", "content": ""}], "messages.0.content"),
        ([{"role": "user", "content": " \n "}], "messages.0.content"),
        ([{"role": "user", "content": "boat " * 100_000}], "messages"),
        ([{"role": "user", "content": "boat " * 1000}], "messages"),
        ([{"role": "user", "content": "a <sop>36 24<eop>"}], "messages.0.content"),
        ([{"role": "user", "content": "a <|dit_token_17|> b"}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "text", "text": "<|image|>"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": "a '" + "x" * 2048 + "'"}], "messages.0.content"),
        ([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}], "messages.0.role"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}], "messages"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}],
            "messages.0.content.0.image_url.url",  # the pipeline draws, and does not edit
        ),
    ],
)
def test_messages_that_are_no_description(
    pipelines: Pipelines, checkpoint: Path, messages: list[dict[str, Any]], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        admitted(pipelines, checkpoint, {"messages": messages})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("stages", "field", "message"),
    [
        ({"generate": {"width": 0}}, "stages.generate.width", "the nearest is 64"),
        ({"generate": {"width": 1}}, "stages.generate.width", "the nearest is 64"),
        ({"generate": {"height": 10**6}}, "stages.generate.height", "the nearest is 2048"),
        ({"generate": {"height": -32}}, "stages.generate.height", "the nearest is 64"),
        ({"generate": {"height": 1000}}, "stages.generate.height", "the nearest are 992 and 1024"),
        ({"generate": {"height": 64.0}}, "stages.generate.height", "integer"),
        ({"generate": {"temperature": 1e9}}, "stages.generate.temperature", "less"),
        ({"generate": {"max_tokens": 3}}, "stages.generate.max_tokens", "unknown key"),
        ({"denoise": {"steps": 0}}, "stages.denoise.steps", "greater than or equal to 1"),
        ({"denoise": {"steps": 10_000}}, "stages.denoise.steps", "less than or equal to 200"),
        ({"denoise": {"guidance_scale": 0.5}}, "stages.denoise.guidance_scale", "greater"),
        ({"denoise": {"guidance_scale": 1e9}}, "stages.denoise.guidance_scale", "less"),
        ({"denoise": {"width": 64}}, "stages.denoise.width", "unknown key"),
        ({"decode": {"steps": 1}}, "stages.decode.steps", "unknown key"),
    ],
)
def test_parameters_that_the_model_cannot_take(
    pipelines: Pipelines, checkpoint: Path, stages: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        admitted(pipelines, checkpoint, {**user("a boat"), "stages": stages})
    assert refused.value.field == field
    assert message in refused.value.message


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "7"])
def test_a_seed_that_is_none(pipelines: Pipelines, checkpoint: Path, seed: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        admitted(pipelines, checkpoint, {**user("a boat"), "seed": seed})
    assert refused.value.field == "seed"
