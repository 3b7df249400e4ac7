"""What a request for an edit may say: refused with its field, before anything is stored."""

import base64
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from omni_jobs.errors import ConfigError, InvalidInput, ModelMissing
from omni_jobs.media import ImageInfo
from omni_jobs.media.wall import MediaWall
from omni_jobs.new_job import NewJob
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.prompts.renderers import Renderers, families_of, load_renderer
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from tests.integration.runners.qwen_image_edits import picture
from workers.models.qwen_image.prompts import QwenImageEditPromptRenderer
from workers.models.qwen_image.size import Size, default_size, size_of_area
from workers.models.qwen_image.template import EDIT_PREFIX as PREFIX
from workers.models.qwen_image.template import SUFFIX, TEMPLATES

PREFIX_TOKENS = TEMPLATES["QwenImageEditPlusPipeline"].prefix_tokens
CONFIGS = Path(__file__).parents[4] / "stage_configs"
Checkpoints = Callable[[int], Path]


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_image_edits: Checkpoints) -> Path:
    return tiny_qwen_image_edits(0)


@pytest.fixture(scope="module")
def single(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint as one of QwenImageEditPipeline."""
    directory = tmp_path_factory.mktemp("single") / "checkpoint"
    shutil.copytree(checkpoint, directory)
    index = json.loads((directory / "model_index.json").read_text())
    (directory / "model_index.json").write_text(json.dumps({**index, "_class_name": "QwenImageEditPipeline"}))
    return directory


def renderer_of(checkpoint: Path) -> QwenImageEditPromptRenderer:
    loaded = load_renderer("qwen_image_edit", checkpoint)
    assert isinstance(loaded, QwenImageEditPromptRenderer)
    return loaded


@pytest.fixture(scope="module")
def pipelines() -> Pipelines:
    return load_pipelines(CONFIGS)


@pytest.fixture(scope="module")
def wall() -> Iterator[MediaWall]:
    with MediaWall(Settings()) as started:
        yield started


def user(text: str, pictures: int, **changes: Any) -> dict[str, Any]:
    parts = [{"type": "image", "media": number} for number in range(pictures)]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}], **changes}


@pytest.mark.parametrize(("pictures", "sizes"), [(1, [(80, 60)]), (3, [(80, 60), (1500, 300), (64, 64)])])
@pytest.mark.parametrize("text", ["make it red", "海 ⛵ {} {0}"])
@pytest.mark.parametrize("plus", [True, False])
def test_the_tokens_are_those_of_the_reference(
    checkpoint: Path, single: Path, plus: bool, pictures: int, sizes: list[tuple[int, int]], text: str
) -> None:
    """Of the pipeline's own template and processor, which puts so many tokens for a picture as we count."""
    from diffusers import DiffusionPipeline

    if not plus and pictures > 1:
        return
    directory = checkpoint if plus else single
    renderer = renderer_of(directory)
    processor = DiffusionPipeline.from_pretrained(directory, local_files_only=True).processor
    request = user(text, pictures)
    seen = [Image.new("RGB", renderer.seen_as(Size(height, width))[::-1]) for width, height in sizes]
    theirs = processor(text=[renderer.render(request)], images=seen)["input_ids"][0]
    infos = [ImageInfo("image/png", width, height) for width, height in sizes]
    assert renderer.count_tokens(request, infos) == len(theirs)
    pad = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    once = [token for n, token in enumerate(theirs) if token != pad or theirs[n - 1] != pad]
    assert renderer.encode(request) == once == renderer.encode_text(text, pictures)


def test_templates_and_numbers_are_diffusers_own(checkpoint: Path, single: Path) -> None:
    from diffusers import DiffusionPipeline
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

    for directory in (checkpoint, single):
        pipeline = DiffusionPipeline.from_pretrained(directory, local_files_only=True)
        own = PREFIX + ("" if directory == checkpoint else "<|vision_start|><|image_pad|><|vision_end|>")
        assert pipeline.prompt_template_encode == f"{own}{{}}{SUFFIX}"
        assert pipeline.prompt_template_encode_start_idx == PREFIX_TOKENS
        assert len(pipeline.tokenizer(PREFIX)["input_ids"]) == PREFIX_TOKENS
    assert TEMPLATES["QwenImageEditPlusPipeline"].pixels == plus.CONDITION_IMAGE_SIZE
    assert renderer_of(checkpoint).render(user("x", 2)) == (
        f"{PREFIX}Picture 1: <|vision_start|><|image_pad|><|vision_end|>"
        f"Picture 2: <|vision_start|><|image_pad|><|vision_end|>x{SUFFIX}"
    )


@pytest.mark.parametrize("size", [(1, 1), (60, 80), (1024, 768), (3000, 2001), (28, 5600), (1333, 28), (97, 383)])
def test_sizes_are_diffusers_own(size: tuple[int, int]) -> None:
    from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import calculate_dimensions

    height, width = size
    for pixels in (384 * 384, 1024 * 1024):
        assert size_of_area(pixels, Size(height, width))[::-1] == calculate_dimensions(pixels, width / height)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((600, 800), (896, 1184)),
        ((1, 4), (512, 2048)),
        ((100, 1000), (192, 2048)),
        ((5600, 28), (2048, 32)),  # 200 : 1, in multiples of 32
    ],
)
def test_an_edit_that_names_no_size_has_the_last_picture_s_ratio(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert default_size(Size(*size)) == expected


def test_diffusers_layout_decides_the_family(checkpoint: Path, single: Path, tiny_qwen_images: Checkpoints) -> None:
    assert families_of(checkpoint) == families_of(single) == {"qwen_image_edit"}
    assert families_of(tiny_qwen_images(0)) == {"qwen_image"}


def test_a_checkpoint_that_draws_does_not_edit_and_the_other_way_round(
    checkpoint: Path, tiny_qwen_images: Checkpoints, pipelines: Pipelines
) -> None:
    for name, directory, about in (
        ("qwen_image_edit", tiny_qwen_images(0), "a 'QwenImagePipeline' does not edit pictures"),
        ("qwen_image", checkpoint, "a 'QwenImageEditPlusPipeline' does not draw"),
    ):
        settings = Settings(models={name: directory})
        with pytest.raises(ModelMissing, match=about):
            Renderers(settings).of(pipelines.named(name))


def test_a_checkpoint_without_its_processor_names_the_file(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "processor")
    with pytest.raises(ConfigError) as refused:
        QwenImageEditPromptRenderer(tmp_path / "broken")
    assert refused.value.file == str(tmp_path / "broken" / "processor" / "preprocessor_config.json")


# Requests


def part(image: Image.Image | bytes, kind: str = "PNG", **options: Any) -> dict[str, Any]:
    if isinstance(image, Image.Image):
        file = io.BytesIO()
        image.save(file, kind, **options)
        image = file.getvalue()
    return {"type": "image_url", "image_url": {"url": f"data:image/x;base64,{base64.b64encode(image).decode()}"}}


def message(*parts: Any) -> dict[str, Any]:
    texts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in parts]
    return {"messages": [{"role": "user", "content": texts}]}


def admitted(checkpoint: Path, pipelines: Pipelines, wall: MediaWall, body: dict[str, Any]) -> NewJob:
    settings = Settings(models={"qwen_image_edit": checkpoint})
    return admit(
        parse({"model": "qwen_image_edit", **body}, settings), pipelines, settings, Renderers(settings), wall=wall
    )


SMALL = part(picture(64, 48))
SMALL_BYTES = base64.b64decode(SMALL["image_url"]["url"].partition(",")[2])
SECOND = "messages.0.content.1.image_url.url"


@pytest.mark.parametrize(
    ("body", "field", "about"),
    [
        (message("make it red"), "messages.0.content", "edits 1 to 3 pictures, and the message has none"),
        (message("x", *[SMALL] * 4), "messages.0.content", "the message has 4"),
        (message(SMALL), "messages.0.content", "the instruction is empty"),
        (message(SMALL, " \n"), "messages.0.content", "the instruction is empty"),
        (message(SMALL, "a <|image_pad|>"), "messages.0.content.1.text", "reserve"),
        (message(SMALL, "a " * 2048), "messages", "the model takes at most 2112"),
        ({"messages": [*message(SMALL, "x")["messages"], {"role": "user", "content": "y"}]}, "messages.1", "single"),
        (message("x", part(Image.new("RGB", (1, 1)))), SECOND, "each side needs at least 28"),
        (message("x", part(Image.new("RGB", (6000, 28)))), SECOND, "differ by more than 200 times"),
        (message("x", part(SMALL_BYTES[:200])), SECOND, "does not decode"),
        (message("x", part(b"nothing")), SECOND, "not an image"),
        (
            {**message(SMALL, "x"), "stages": {"encode": {"negative_prompt": "a <|im_end|>"}}},
            "stages.encode.negative_prompt",
            "reserve",
        ),
        (
            {**message(SMALL, "x"), "stages": {"encode": {"negative_prompt": "a " * 2000}}},
            "stages.encode.negative_prompt",
            "tokens with pictures and template",
        ),
        ({**message(SMALL, "x"), "stages": {"denoise": {"width": 1000}}}, "stages.denoise.width", "the nearest are"),
        ({**message(SMALL, "x"), "stages": {"sources": {"pixels": 0}}}, "stages.sources.pixels", "greater than"),
        ({**message(SMALL, "x"), "stages": {"sources": {"pixels": 10**7}}}, "stages.sources.pixels", "less than"),
    ],
)
def test_what_is_no_edit_is_refused(
    checkpoint: Path, pipelines: Pipelines, wall: MediaWall, body: dict[str, Any], field: str, about: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        admitted(checkpoint, pipelines, wall, body)
    assert (refused.value.field, about in refused.value.message) == (field, True), refused.value


def test_a_checkpoint_of_one_picture_takes_no_two(single: Path, pipelines: Pipelines, wall: MediaWall) -> None:
    with pytest.raises(InvalidInput, match="edits one picture, and the message has 2"):
        admitted(single, pipelines, wall, message(SMALL, SMALL, "x"))
    assert len(admitted(single, pipelines, wall, message(SMALL, "x")).unstored) == 1


def test_a_picture_too_long_for_the_text_encoder_is_refused(
    single: Path, pipelines: Pipelines, wall: MediaWall
) -> None:
    """200 : 1 is 14496 x 64 pixels for this checkpoint, of which its processor takes none."""
    with pytest.raises(InvalidInput, match="takes no picture so long") as refused:
        admitted(single, pipelines, wall, message("x", part(Image.new("RGB", (5600, 28)))))
    assert refused.value.field == SECOND


def test_the_longest_instruction_is_what_pictures_leave(
    checkpoint: Path, pipelines: Pipelines, wall: MediaWall
) -> None:
    renderer = renderer_of(checkpoint)
    taken = renderer.count_tokens(user("", 1), [ImageInfo("image/png", 64, 48)])
    longest = "a" * (PREFIX_TOKENS + 2048 - taken)
    job = admitted(checkpoint, pipelines, wall, message(SMALL, longest))
    assert [stage.name for stage in job.stages] == ["encode", "sources", "denoise", "decode"]
    with pytest.raises(InvalidInput, match="has 2113 tokens; the model takes at most 2112"):
        admitted(checkpoint, pipelines, wall, message(SMALL, longest + "a"))


PALETTE = picture(64, 48).quantize(16)
UNUSUAL = {
    "animated": part(PALETTE, "GIF", save_all=True, append_images=[PALETTE.rotate(180)]),
    "16 bit": part(Image.new("I;16", (64, 48), 40_000)),
    "CMYK": part(picture(64, 48).convert("CMYK"), "JPEG"),
    "broken profile": part(picture(64, 48), icc_profile=b"no profile at all"),
    "transparent": part(picture(64, 48).convert("RGBA")),
    "narrow": part(Image.new("RGB", (5600, 28))),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_picture_is_an_ordinary_one(
    checkpoint: Path, pipelines: Pipelines, wall: MediaWall, name: str
) -> None:
    """The first frame, in 8 bits, RGB, on white: in each stage that takes pictures."""
    from workers.stages.engine_args import OmniModelConfig
    from workers.stages.stage import Stage

    job = admitted(checkpoint, pipelines, wall, message(UNUSUAL[name], "make it red"))
    prompts: dict[str, Any] = {}
    pipeline = pipelines[job.pipeline.name]
    for stage_name in [each.name for each in job.stages[:2]]:
        stage = Stage(pipeline, pipeline.stage(stage_name), checkpoint, wall)
        assert isinstance(stage.model, OmniModelConfig)
        given = stage.input_of(
            job_id="job-1",
            request=job.request,
            media=[each.data for each in job.unstored],
            upstream={},
            seed=1,
            has_successors=True,
        )
        prompts[stage_name] = stage.make_prompt(given)
    (seen,) = prompts["encode"].pictures
    (pixels,) = prompts["sources"].tensors["pictures"]
    narrow = name == "narrow"
    assert (seen.mode, seen.size) == ("RGB", (5440, 32) if narrow else (448, 320))
    assert tuple(pixels.shape) == ((64, 14496, 3) if narrow else (896, 1184, 3))
    assert prompts["sources"].values["default_size"] == ([32, 2048] if narrow else [896, 1184])
    if name == "16 bit":
        assert pixels.float().mean() == 40_000 >> 8
