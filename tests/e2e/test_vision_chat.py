"""Chat about media through the whole stack by OpenAI's own client: Qwen2.5-VL, and Qwen2.5-Omni's thinker alone."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from omni_jobs.media.image import decode_image
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.video import decode_video
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests.integration.openai.stock import Stock, stock_client
from tests.oracles.qwen2_5_vl import QwenVlReference
from tests.oracles.reference import Reference
from tests.oracles.samples import audio_part, image, image_part, video, video_part, wav
from tests.services.checkpoint import TinyCheckpoints

pytestmark = pytest.mark.timeout(600)

SHIPPED = Path(__file__).parents[2] / "stage_configs"
TOKENS = 24
SOUND, LEFT, RIGHT, CLIP = wav(0.5), image(160, 120), image(60, 200), video(12, width=112, height=84)


def stage_configs(directory: Path) -> Path:
    """The shipped pipeline of Qwen2.5-VL, in float32, and ``hearing``: the thinker of Qwen2.5-Omni's and no more."""
    seeing, omni = (yaml.safe_load((SHIPPED / f"{name}.yaml").read_text()) for name in ("qwen2_5_vl", "qwen2_5_omni"))
    seeing["stages"]["llm"]["engine"]["dtype"] = "float32"
    hearing = {name: copy.deepcopy(omni[name]) for name in ("version", "model", "accepts")}
    hearing |= {"name": "hearing", "stages": {"thinker": {**omni["stages"]["thinker"], "produces": "text"}}}
    hearing["outputs"] = {"text": {"stage": "thinker"}}
    directory.mkdir()
    for pipeline in (seeing, hearing):
        pipeline["stages"][next(iter(pipeline["stages"]))]["engine"]["cpu"]["kv_cache_memory_bytes"] = 64 << 20
        (directory / f"{pipeline['name']}.yaml").write_text(yaml.safe_dump(pipeline), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def checkpoints(tiny_qwen_vls: TinyCheckpoints, tiny_checkpoint: Path) -> Mapping[str, Path]:
    return {"qwen2_5_vl": tiny_qwen_vls(0), "hearing": tiny_checkpoint}


@pytest.fixture(scope="module")
def stock(checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    directory = tmp_path_factory.mktemp("vision")
    settings = Settings(
        data_dir=directory / "data",
        stage_configs=stage_configs(directory / "stage_configs"),
        models=dict(checkpoints),
        spool_dir=directory / "spool",
        lease_s=5.0,
    )
    with EmbeddedStack(settings, pipelines=list(checkpoints)) as stack, stock_client(stack.url) as stock:
        yield stock


def answer(stock: Stock, model: str, *parts: Mapping[str, Any]) -> Any:
    greedy = {"temperature": 0, "repetition_penalty": 1.0, "max_tokens": TOKENS}
    stage = "llm" if model == "qwen2_5_vl" else "thinker"
    return stock.client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": list(parts)}],  # type: ignore[list-item]
        extra_body={"stages": {stage: greedy}},
    )


def asked(*kinds: str, words: str) -> Sequence[Mapping[str, Any]]:
    """The message as the oracles take it."""
    parts: list[dict[str, Any]] = [{"type": kind, "media": number} for number, kind in enumerate(kinds)]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": words}]}]


def test_pictures_and_videos_are_seen_as_transformers_sees_them(stock: Stock, checkpoints: Mapping[str, Path]) -> None:
    limits = MediaLimits.of(Settings())
    reference = QwenVlReference(checkpoints["qwen2_5_vl"])
    pictures = [decode_image(data, limits) for data in (LEFT, RIGHT)]
    clip = decode_video(CLIP, limits)
    for kinds, media, parts in (
        ([], {}, []),
        (["image"], {"image": pictures[:1]}, [image_part(LEFT)]),
        (["image", "image"], {"image": pictures}, [image_part(LEFT), image_part(RIGHT)]),
        (["image", "video"], {"image": pictures[:1], "video": [clip]}, [image_part(LEFT), video_part(CLIP)]),
    ):
        expected = reference.generate(asked(*kinds, words="What is it?"), media, TOKENS)
        found = answer(stock, "qwen2_5_vl", *parts, {"type": "text", "text": "What is it?"})
        assert found.choices[0].message.content == expected.text
        assert found.usage.prompt_tokens == len(expected.prompt_ids)
        assert found.usage.completion_tokens == len(expected.tokens)


def test_the_thinker_alone_hears_and_sees(stock: Stock, checkpoints: Mapping[str, Path]) -> None:
    reference = Reference(checkpoints["hearing"])
    made = {"audio": (SOUND, audio_part), "image": (LEFT, image_part), "video": (CLIP, video_part)}
    for kinds in ((), ("audio",), ("image",), ("video",), ("audio", "image", "image", "video")):
        expected = reference.generate(
            asked(*kinds, words="Do they match?"),
            [made[kind][0] for kind in kinds],
            modalities=("text",),
            thinker_max_tokens=TOKENS,
        )
        parts = [made[kind][1](made[kind][0]) for kind in kinds]
        found = answer(stock, "hearing", *parts, {"type": "text", "text": "Do they match?"})
        assert found.choices[0].message.content == expected.text, kinds
        assert found.usage.prompt_tokens == len(expected.prompt_ids)


def test_what_a_model_cannot_take_is_refused_with_its_field(stock: Stock) -> None:
    words = {"type": "text", "text": "What is it?"}
    error = stock.error(
        openai.BadRequestError, lambda: answer(stock, "qwen2_5_vl", image_part(LEFT), audio_part(SOUND), words)
    )
    assert error.param == "messages.0.content.1.input_audio.data"
    assert "takes no audio" in error.message
    long = image_part(image(28 * 201, 28))
    error = stock.error(openai.BadRequestError, lambda: answer(stock, "qwen2_5_vl", long, words))
    assert error.param == "messages.0.content.0.image_url.url"
    many = [image_part(image(900, 900))] * 9
    error = stock.error(openai.BadRequestError, lambda: answer(stock, "qwen2_5_vl", *many, words))
    assert (error.param, "the model takes at most 8191" in error.message) == ("messages", True)
