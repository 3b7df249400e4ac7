"""The prompts of Qwen3-Omni against Transformers' own processor, on the tiny checkpoint."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omni_jobs.media import AudioInfo, ImageInfo, MediaInfo, VideoInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.renderers import PromptRenderer, load_renderer
from tests.services.checkpoint import TinyCheckpoints


@pytest.fixture(scope="module")
def renderer(tiny_qwen3_omnis: TinyCheckpoints) -> PromptRenderer:
    return load_renderer("qwen3_omni", tiny_qwen3_omnis(0))


@pytest.fixture(scope="module")
def processor(tiny_qwen3_omnis: TinyCheckpoints) -> Any:
    from transformers import Qwen3OmniMoeProcessor

    return Qwen3OmniMoeProcessor.from_pretrained(tiny_qwen3_omnis(0))


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


MESSAGES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "用一句话介绍灯塔。"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *user({"type": "text", "text": " 🙂"})],
    user({"type": "image", "media": 0}, {"type": "audio", "media": 1}, {"type": "video", "media": 2}),
]


@pytest.mark.parametrize("messages", MESSAGES)
def test_the_prompt_is_transformers(renderer: PromptRenderer, processor: Any, messages: list[dict[str, Any]]) -> None:
    expected = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert renderer.render({"messages": messages}) == expected


@pytest.mark.parametrize(
    ("pictures", "sounds", "videos"),
    [
        ([(160, 120)], [], []),
        ([(64, 640), (1200, 900)], [800], []),
        ([], [100, 101, 799, 6000], []),
        ([], [], [(5, 112, 84)]),
        ([(33, 40)], [99], [(1, 700, 600), (8, 64, 64)]),
    ],
)
def test_prompts_have_transformers_number_of_tokens(
    renderer: PromptRenderer,
    processor: Any,
    pictures: Sequence[tuple[int, int]],
    sounds: Sequence[int],
    videos: Sequence[tuple[int, int, int]],
) -> None:
    """``sounds``: the mel frames of each, of which 6000 are a minute."""
    infos: list[MediaInfo] = [ImageInfo("image/png", width, height) for width, height in pictures]
    infos += [AudioInfo("audio/wav", frames * 160) for frames in sounds]
    infos += [VideoInfo("video/mp4", frames, width, height, 1.0) for frames, width, height in videos]
    kinds = ["image"] * len(pictures) + ["audio"] * len(sounds) + ["video"] * len(videos)
    request = {"messages": user(*({"type": kind, "media": number} for number, kind in enumerate(kinds)))}
    data = {
        "images": [Image.new("RGB", size) for size in pictures],
        "audio": [np.zeros(frames * 160, np.float32) for frames in sounds],
        "videos": [np.zeros((frames, height, width, 3), np.uint8) for frames, width, height in videos],
    }
    encoded = processor(text=[renderer.render(request)], **{name: items for name, items in data.items() if items})
    assert renderer.count_tokens(request, infos) == len(encoded["input_ids"][0])


def test_the_talkers_prompt_is_longer_than_the_thinkers(renderer: PromptRenderer) -> None:
    stages = [
        StageConfig(name="thinker", kind="ar", component="thinker", processor="chat", produces="hidden_states"),
        StageConfig(
            name="talker",
            kind="ar",
            component="talker",
            processor="thinker2talker",
            inputs={"thinker": "hidden_states"},
            produces="code_frames",
        ),
    ]
    assert renderer.prompt_limit(stages[:1]) == 8191
    assert renderer.prompt_limit(stages) == 8192 - 7
