"""What GLM-Image's prompts are; and a request that says what it may not, which is refused with its field."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from omni_jobs.errors import ConfigError, InvalidInput, InvalidRequest
from omni_jobs.media import ImageInfo
from omni_jobs.media.wall import MediaWall
from omni_jobs.new_job import NewJob
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.prompts.renderers import Renderers, families_of, load_renderer
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from tests.oracles.samples import image, image_part
from tests.services.checkpoint import TinyCheckpoints
from tests.source_pictures import drawn
from workers.models.glm_image.grids import LARGEST, MOST_TOKENS, PIXELS, SMALLEST, SourceGrids, grids_of
from workers.models.glm_image.processors import Pictures2SourcesProcessor
from workers.models.glm_image.prompts import GlmImagePromptRenderer, glyph_texts
from workers.stages.types import StageInput

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
    ids, begins = renderer.encode_prompt(user(text), [], grids_of(*size))
    assert begins == []
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


# Source pictures, as the reference


@given(
    height=st.integers(16, 5000),
    width=st.integers(16, 5000),
    shortest=st.sampled_from([64, 512]),
    longest=st.sampled_from([1002, 2048]),
)
def test_source_grids_are_those_of_the_reference(height: int, width: int, shortest: int, longest: int) -> None:
    from transformers.models.glm_image.image_processing_glm_image import smart_resize

    grids = SourceGrids(shortest, longest)
    try:
        rows, columns = smart_resize(height, width, 16, shortest**2, longest**2)
    except ValueError:
        with pytest.raises(InvalidRequest, match="differ by more than 4 times") as refused:
            grids.of(height, width, "here")
        assert refused.value.field == "here"
        return
    assert grids.of(height, width, "here") == (rows // 16, columns // 16)


@pytest.mark.parametrize("sizes", [[(64, 96)], [(300, 100), (77, 150)]])
def test_the_tokens_of_an_edit_are_those_of_the_reference(
    renderer: GlmImagePromptRenderer, processor: Any, sizes: list[tuple[int, int]]
) -> None:
    content = [{"type": "image", "image": drawn(*size)} for size in sizes]
    expected = processor.apply_chat_template(
        [{"role": "user", "content": [*content, {"type": "text", "text": "Make it red"}]}],
        tokenize=True,
        return_dict=True,
        processor_kwargs={"target_h": 64, "target_w": 128},
    )
    request = user(
        [*({"type": "image", "media": n} for n in range(len(sizes))), {"type": "text", "text": "Make it red"}]
    )
    counts = [grid[1] * grid[2] for grid in expected["image_grid_thw"].tolist()[:-1]]
    placeholder = processor.image_token_id
    prompt = renderer.encode_prompt(request, [[placeholder] * n for n in counts], grids_of(64, 128, edits=True))
    assert prompt.ids == [int(token) for token in expected["input_ids"][0]]
    assert [prompt.ids[begin - 1 : begin + 1] for begin in prompt.begins] == [[16_384, placeholder]] * len(sizes)
    assert [prompt.ids[begin + n] for begin, n in zip(prompt.begins, counts, strict=True)] == [16_385] * len(sizes)
    infos = [ImageInfo("image/png", width, height) for height, width in sizes]
    assert renderer.count_tokens(request, infos) >= len(prompt.ids)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"patch_size": 14}, "image_processor.patch_size"),
        ({"merge_size": 2}, "image_processor.patch_size"),
        ({"temporal_patch_size": 2}, "image_processor.temporal_patch_size"),
        ({"size": {"shortest_edge": 4096}}, "longest_edge"),
    ],
)
def test_a_processor_that_sees_pictures_otherwise_is_refused(
    checkpoint: Path, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    settings = json.loads((checkpoint / "processor" / "processor_config.json").read_text())
    settings["image_processor"] |= changes
    (tmp_path / "processor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError) as refused:
        SourceGrids.read(tmp_path)
    assert refused.value.field == field


# Requests


def admitted(pipelines: Pipelines, checkpoint: Path, body: dict[str, Any], wall: MediaWall | None = None) -> NewJob:
    settings = Settings(models={"glm_image": checkpoint})
    return admit(parse({"model": "glm_image", **body}, settings), pipelines, settings, Renderers(settings), wall=wall)


def test_a_request_is_admitted(pipelines: Pipelines, checkpoint: Path) -> None:
    stages = {"generate": {"width": 96, "height": 64}, "denoise": {"steps": 4, "guidance_scale": 2}}
    found = admitted(pipelines, checkpoint, {**user("A sign 'Open'"), "stages": stages})
    assert found.modalities == ("image",)
    assert [stage.name for stage in found.stages] == ["encode", "generate", "denoise", "decode"]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ([{"role": "user", "content": ""}], "messages.0.content"),
        ([{"role": "user", "content": " \n "}], "messages.0.content"),
        ([{"role": "user", "content": "boat " * 100_000}], "messages"),
        ([{"role": "user", "content": "boat " * 3000}], "messages"),
        ([{"role": "user", "content": "a <sop>36 24<eop>"}], "messages.0.content"),
        ([{"role": "user", "content": "a <|dit_token_17|> b"}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "text", "text": "<|image|>"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": "a '" + "x" * 2048 + "'"}], "messages.0.content"),
        ([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}], "messages.0.role"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}], "messages"),
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


# Requests with pictures


@pytest.fixture(scope="module")
def wall() -> Iterator[MediaWall]:
    with MediaWall(Settings(decoders=1)) as started:
        yield started


def edit(*pictures: bytes, text: str = "Make it red") -> dict[str, Any]:
    return user([*map(image_part, pictures), {"type": "text", "text": text}])


def saved(*frames: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    frames[0].save(file, format, **({"save_all": True, "append_images": frames[1:]} if frames[1:] else {}), **options)
    return file.getvalue()


SMALL = image(64, 64)


@pytest.mark.parametrize(
    ("pictures", "place", "message"),
    [
        ([image(1, 1)], 0, "at least 16"),
        ([SMALL, image(64, 15)], 1, "at least 16"),
        ([image(300, 60)], 0, "more than 4 times"),
        ([SMALL, SMALL, image(60, 6000)], 2, "more than 4 times"),
        ([image(28, 8000)], 0, "more than 4 times"),
        ([SMALL] * 5, 4, "at most 4 pictures"),
        ([SMALL[: len(SMALL) // 2]], 0, "does not decode"),
        ([b"GIF89a"], 0, ""),
        ([b"no picture"], 0, "not an image"),
    ],
)
def test_pictures_that_are_not_edited(
    pipelines: Pipelines, checkpoint: Path, wall: MediaWall, pictures: list[bytes], place: int, message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        admitted(pipelines, checkpoint, edit(*pictures), wall)
    assert refused.value.field == f"messages.0.content.{place}.image_url.url"
    assert message in refused.value.message
    assert 400 <= refused.value.http_status < 500


def test_pictures_that_leave_no_room_in_the_context(pipelines: Pipelines, checkpoint: Path, wall: MediaWall) -> None:
    large = saved(Image.new("L", (2048, 2048)))
    assert len(admitted(pipelines, checkpoint, edit(large, large), wall).unstored) == 2
    with pytest.raises(InvalidRequest, match="the model takes at most") as refused:
        admitted(pipelines, checkpoint, edit(large, large, large), wall)
    assert refused.value.field == "messages"


def test_an_edit_needs_words(pipelines: Pipelines, checkpoint: Path, wall: MediaWall) -> None:
    with pytest.raises(InvalidRequest) as refused:
        admitted(pipelines, checkpoint, user([image_part(SMALL)]), wall)
    assert refused.value.field == "messages.0.content"


RED, BLUE = Image.new("RGB", (64, 96), (255, 0, 0)), Image.new("RGB", (64, 96), (0, 0, 255))


@pytest.mark.parametrize(
    ("data", "colour"),
    [
        (saved(RED, BLUE, format="GIF"), (255, 0, 0)),  # the first frame
        (saved(RED, BLUE, format="WEBP", lossless=True), (255, 0, 0)),
        (saved(RED, BLUE), (255, 0, 0)),  # an animated PNG
        (saved(Image.new("I;16", (64, 96), 0x80FF)), (128, 128, 128)),
        (saved(RED.convert("CMYK"), format="JPEG", quality=100), (255, 0, 0)),
        (saved(RED, icc_profile=b"broken" * 50), (255, 0, 0)),
        (saved(RED, format="JPEG", quality=100, icc_profile=b"broken" * 50), (254, 0, 0)),
        (saved(Image.new("RGBA", (64, 96), (0, 0, 0, 0))), (255, 255, 255)),
    ],
)
def test_pictures_of_all_kinds_are_edited(
    pipelines: Pipelines, checkpoint: Path, wall: MediaWall, data: bytes, colour: tuple[int, ...]
) -> None:
    found = admitted(pipelines, checkpoint, edit(data), wall)
    media = [medium.data for medium in found.unstored]
    stage = pipelines.named("glm_image").stage("encode")
    given = StageInput("job-1", found.request, media, {}, StageParameters(), seed=0, capture=False, wall=wall)
    (pixels,) = Pictures2SourcesProcessor(stage, None)(given).tensors["pixels"]
    assert (tuple(pixels.shape), pixels.dtype) == ((96, 64, 3), torch.uint8)
    assert (pixels.int() - torch.tensor(colour)).abs().max() <= 2
    with pytest.raises(ConfigError, match="without a media wall"):
        Pictures2SourcesProcessor(stage, None)(given._replace(wall=None))
    with pytest.raises(InvalidRequest) as refused:  # of the file that was stored
        Pictures2SourcesProcessor(stage, None)(given._replace(media=[b"no picture"]))
    assert refused.value.field == "messages.0.content.0.image_url.url"
