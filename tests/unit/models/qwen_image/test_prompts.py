"""What a request for a picture may say: refused with its field, before anything is stored."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import ConfigError, InvalidRequest, OmniJobsError
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.prompts.renderers import Renderers, families_of, load_renderer
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from workers.models.qwen_image.prompts import QwenImagePromptRenderer
from workers.models.qwen_image.qwen2_tokenizer import load_qwen2_tokenizer
from workers.models.qwen_image.template import DRAW_PREFIX as PREFIX
from workers.models.qwen_image.template import SUFFIX, TEMPLATES

PREFIX_TOKENS = TEMPLATES["QwenImagePipeline"].prefix_tokens
CONFIGS = Path(__file__).parents[4] / "stage_configs"


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_images: Callable[[int], Path]) -> Path:
    return tiny_qwen_images(0)


@pytest.fixture(scope="module")
def renderer(checkpoint: Path) -> QwenImagePromptRenderer:
    loaded = load_renderer("qwen_image", checkpoint)
    assert isinstance(loaded, QwenImagePromptRenderer)
    return loaded


@pytest.fixture(scope="module")
def pipelines() -> Pipelines:
    return load_pipelines(CONFIGS)


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("text", ["a red boat", "海上的一只小船 ⛵", "{} {0}", "It's 3:30\n\n  ok?", "e\u0301"])
def test_the_tokens_are_those_of_the_reference(renderer: QwenImagePromptRenderer, checkpoint: Path, text: str) -> None:
    from transformers import Qwen2Tokenizer

    tokenizer: Any = Qwen2Tokenizer.from_pretrained(checkpoint / "tokenizer")
    prompt = f"{PREFIX}{text}{SUFFIX}"
    ids = renderer.encode(user(text))
    assert ids == tokenizer(prompt)["input_ids"] == renderer.encode_text(text)
    assert renderer.render(user(text)) == prompt
    assert renderer.count_tokens(user(text), ()) == len(ids)
    assert renderer.encode(user([{"type": "text", "text": text[:2]}, {"type": "text", "text": text[2:]}])) == ids


def test_template_and_numbers_are_diffusers_own(checkpoint: Path) -> None:
    from diffusers import QwenImagePipeline

    pipeline = QwenImagePipeline.from_pretrained(checkpoint, local_files_only=True)
    assert pipeline.prompt_template_encode == f"{PREFIX}{{}}{SUFFIX}"
    assert pipeline.prompt_template_encode_start_idx == PREFIX_TOKENS
    assert len(pipeline.tokenizer(PREFIX)["input_ids"]) == PREFIX_TOKENS


def test_diffusers_layout_decides_the_family(checkpoint: Path) -> None:
    assert families_of(checkpoint) == {"qwen_image"}


# The tokenizer of the real checkpoint has no tokenizer.json.


@pytest.fixture
def older(checkpoint: Path, tmp_path: Path) -> Path:
    """The same tokenizer as vocab.json, merges.txt and tokenizer_config.json."""
    tokenizer = json.loads((checkpoint / "tokenizer" / "tokenizer.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in tokenizer["model"]["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    added = {
        token["id"]: {"content": token["content"], "special": token["special"]} for token in tokenizer["added_tokens"]
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    return tmp_path


@pytest.mark.parametrize("text", [f"{PREFIX}a boat{SUFFIX}", "It's 3:30\n\n  ok? 海 ⛵ e\u0301 <|vision_start|>x"])
def test_vocabulary_and_merges_make_the_same_tokenizer(checkpoint: Path, older: Path, text: str) -> None:
    ids = [load_qwen2_tokenizer(each).encode(text).ids for each in (checkpoint / "tokenizer", older)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json"])
def test_a_tokenizer_without_a_file_names_it(older: Path, name: str) -> None:
    (older / name).unlink()
    with pytest.raises(ConfigError) as refused:
        load_qwen2_tokenizer(older)
    assert (refused.value.to_dict()["file"]).endswith(name)


@pytest.mark.parametrize(
    "added",
    [
        None,
        {"x": {"content": "a", "special": True}},
        {"900": {"special": True}},
        {"900": {"content": "<|a|>", "special": True}},
    ],
)
def test_added_tokens_that_are_none_are_refused(older: Path, added: Any) -> None:
    (older / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(ConfigError) as refused:
        load_qwen2_tokenizer(older)
    assert refused.value.to_dict()["field"] == "added_tokens_decoder"


def test_wrong_files_are_refused(older: Path, checkpoint: Path, tmp_path: Path) -> None:
    (older / "merges.txt").write_text("not here\n")
    with pytest.raises(ConfigError, match="do not fit"):
        load_qwen2_tokenizer(older)
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    tokenizer = json.loads((other / "tokenizer" / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (other / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="begins with 34 tokens"):
        QwenImagePromptRenderer(other)


# Requests


def refused(pipelines: Pipelines, checkpoint: Path, body: dict[str, Any]) -> OmniJobsError:
    settings = Settings(models={"qwen_image": checkpoint})
    with pytest.raises(InvalidRequest) as caught:
        admit(parse({"model": "qwen_image", **body}, settings), pipelines, settings, Renderers(settings))
    return caught.value


LONG = "boat " * 100_000


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ([{"role": "user", "content": ""}], "messages.0.content"),
        ([{"role": "user", "content": " \n "}], "messages.0.content"),
        ([{"role": "user", "content": LONG}], "messages"),
        ([{"role": "user", "content": "a " * 1200}], "messages"),
        ([{"role": "user", "content": "a <|im_end|> b"}], "messages.0.content"),
        ([{"role": "user", "content": "<|im_start|>system"}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "text", "text": "<|vision_start|>"}]}], "messages.0.content.0.text"),
        ([{"role": "system", "content": "x"}], "messages.0"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}], "messages.1"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "messages.1"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}],
            "messages.0.content.0.image_url.url",  # the pipeline draws, and does not edit
        ),
    ],
)
def test_messages_that_are_no_description(
    pipelines: Pipelines, checkpoint: Path, messages: list[dict[str, Any]], field: str
) -> None:
    error = refused(pipelines, checkpoint, {"messages": messages})
    assert error.field == field


@pytest.mark.parametrize(
    ("stages", "field", "message"),
    [
        ({"denoise": {"width": 0}}, "stages.denoise.width", "the nearest is 16"),
        ({"denoise": {"width": 1}}, "stages.denoise.width", "the nearest is 16"),
        ({"denoise": {"height": 10**6}}, "stages.denoise.height", "the nearest is 2048"),
        ({"denoise": {"height": -16}}, "stages.denoise.height", "the nearest is 16"),
        ({"denoise": {"height": 1000}}, "stages.denoise.height", "the nearest are 992 and 1008"),
        ({"denoise": {"height": 2047}}, "stages.denoise.height", "the nearest are 2032 and 2048"),
        ({"denoise": {"height": 64.0}}, "stages.denoise.height", "integer"),
        ({"denoise": {"height": "64"}}, "stages.denoise.height", "integer"),
        ({"denoise": {"steps": 0}}, "stages.denoise.steps", "greater than or equal to 1"),
        ({"denoise": {"steps": 10_000}}, "stages.denoise.steps", "less than or equal to 200"),
        ({"denoise": {"true_cfg_scale": 0.5}}, "stages.denoise.true_cfg_scale", "greater"),
        ({"denoise": {"true_cfg_scale": 1e9}}, "stages.denoise.true_cfg_scale", "less"),
        ({"denoise": {"guidance": 1.0}}, "stages.denoise.guidance", "unknown key"),
        ({"decode": {"steps": 1}}, "stages.decode.steps", "unknown key"),
        ({"encode": {"negative_prompt": "a <|im_end|>"}}, "stages.encode.negative_prompt", "reserve"),
        ({"encode": {"negative_prompt": "a " * 1200}}, "stages.encode.negative_prompt", "tokens"),
        ({"encode": {"negative_prompt": LONG}}, "stages.encode.negative_prompt", ""),
        ({"encode": {"negative_prompt": 3}}, "stages.encode.negative_prompt", "string"),
    ],
)
def test_parameters_that_the_model_cannot_take(
    pipelines: Pipelines, checkpoint: Path, stages: dict[str, Any], field: str, message: str
) -> None:
    error = refused(pipelines, checkpoint, {**user("a boat"), "stages": stages})
    assert error.field == field
    assert message in error.message


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ('"seed": -1', "seed"),
        ('"seed": 9223372036854775808', "seed"),
        ('"n": 4', "n"),
        ('"stages": {"denoise": {"true_cfg_scale": NaN}}', "stages.denoise.true_cfg_scale"),
        ('"stages": {"denoise": {"true_cfg_scale": 1e999}}', "stages.denoise.true_cfg_scale"),
    ],
)
def test_numbers_that_no_picture_has(pipelines: Pipelines, checkpoint: Path, given: str, field: str) -> None:
    settings = Settings(models={"qwen_image": checkpoint})
    body = json.dumps({"model": "qwen_image", **user("a boat")})[:-1] + f", {given}}}"
    with pytest.raises(InvalidRequest) as caught:
        admit(parse(body.encode(), settings), pipelines, settings)
    assert caught.value.field == field


def test_the_longest_description_is_taken(pipelines: Pipelines, checkpoint: Path) -> None:
    settings = Settings(models={"qwen_image": checkpoint})
    suffix = 5
    longest = "a" * (1024 - suffix)
    admitted = admit(parse({"model": "qwen_image", **user(longest)}, settings), pipelines, settings)
    assert admitted.modalities == ("image",)
    assert [stage.name for stage in admitted.stages] == ["encode", "denoise", "decode"]
    error = refused(pipelines, checkpoint, user(longest + "a"))
    assert "1059 tokens; the model takes at most 1058" in error.message
