"""A job's cost, by the parameters that it sets for the stages of the pipelines that come along."""

from pathlib import Path
from typing import Any

import pytest

from omni_jobs.media.info import AudioInfo, ImageInfo, MediaInfo, VideoInfo
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.requests.cost import LEAST, MOST, cost_of, estimated_tokens
from workers.runners.remote.parameters import RemoteParameters

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def pipelines() -> Pipelines:
    return load_pipelines(ROOT / "stage_configs")


def cost(pipelines: Pipelines, pipeline: str, outputs: tuple[str, ...], **parameters: dict[str, Any]) -> float:
    return cost_of(pipelines.named(pipeline).stages_for(outputs), parameters)


@pytest.mark.parametrize(
    ("pipeline", "outputs"),
    [
        ("chat", ("text",)),
        ("echo", ("text",)),
        ("echo_media", ("text", "audio")),
        ("echo_media", ("image",)),
        ("echo_media", ("video",)),
        ("glm_image", ("image",)),
        ("qwen2_5_omni", ("text", "audio")),
        ("qwen2_5_vl", ("text",)),
        ("qwen3_omni", ("text", "audio")),
        ("qwen_image", ("image",)),
        ("qwen_image_edit", ("image",)),
        ("transcribe", ("text",)),
        ("upscale", ("image",)),
        ("wan", ("video",)),
        ("wan_i2v", ("video",)),
    ],
)
def test_a_job_that_sets_nothing_costs_one(pipelines: Pipelines, pipeline: str, outputs: tuple[str, ...]) -> None:
    assert cost(pipelines, pipeline, outputs) == 1.0


@pytest.mark.parametrize(
    ("pipeline", "parameters", "expected"),
    [
        ("qwen_image", {"denoise": {"steps": 200}}, 4.0),
        ("qwen_image", {"denoise": {"steps": 25}}, 0.5),
        ("qwen_image", {"denoise": {"width": 1328, "height": 672}}, 672 / 1328),
        ("qwen_image", {"denoise": {"steps": 200, "width": 2048, "height": 2048}}, 4 * 2048**2 / 1328**2),
        ("qwen_image", {"denoise": {"true_cfg_scale": 2.0}}, 1.0),
        ("qwen_image", {"denoise": {"steps": 1, "width": 256, "height": 256}}, LEAST),
        ("qwen_image_edit", {"denoise": {"width": 2048, "height": 2048}}, 4.0),
        ("qwen_image_edit", {"denoise": {"width": None, "steps": 100}}, 2.0),
        ("glm_image", {"generate": {"width": 2048, "height": 2048}, "denoise": {"steps": 100}}, 8.0),
        ("glm_image", {"generate": {"width": 2048}}, 1.0),
    ],
)
def test_pictures_cost_their_steps_and_pixels(
    pipelines: Pipelines, pipeline: str, parameters: dict[str, dict[str, Any]], expected: float
) -> None:
    assert cost(pipelines, pipeline, ("image",), **parameters) == pytest.approx(expected)


def test_a_text_costs_the_tokens_that_it_may_have(pipelines: Pipelines) -> None:
    for tokens, expected in ((1, LEAST), (512, 0.5), (1024, 1.0), (32_768, 32.0), (1_000_000, 1_000_000 / 1024)):
        assert cost(pipelines, "chat", ("text",), llm={"max_tokens": tokens}) == pytest.approx(expected)


def test_the_dearest_stage_counts(pipelines: Pipelines) -> None:
    spoken = ("text", "audio")
    assert cost(pipelines, "qwen2_5_omni", spoken, thinker={"max_tokens": 512}, talker={"max_tokens": 8192}) == 2.0
    assert cost(pipelines, "qwen2_5_omni", spoken, code2wav={"steps": 37}) == 4.0
    assert cost(pipelines, "qwen2_5_omni", spoken, code2wav={"solver": "euler", "steps": 37}) == 1.0
    assert cost(pipelines, "qwen2_5_omni", ("text",), thinker={"max_tokens": 512}) == 0.5


def test_what_is_left_to_a_server_counts_as_much(tmp_path: Path) -> None:
    """Null is no way to pay for the default and to get all that the server lets."""
    (tmp_path / "far.yaml").write_text(
        "name: far\nversion: '1'\ndescription: far\naccepts: [text]\nstages:\n  ask:\n    kind: remote\n"
        "    processor: remote_chat\n    produces: text\n    engine: {server: s, endpoint: chat, model: m}\n"
        "outputs:\n  text: {stage: ask}\n"
    )
    pipelines = load_pipelines(tmp_path)
    assert cost(pipelines, "far", ("text",), ask={"max_tokens": None}) == 32.0
    assert cost(pipelines, "far", ("text",), ask={"max_tokens": 2048}) == 2.0


def test_pictures_and_videos_of_servers() -> None:
    chosen = RemoteParameters(size="2048x1024", seconds=8)
    assert (chosen.pixels, chosen.frames) == (2 << 20, 192)
    assert (RemoteParameters(size="auto").pixels, RemoteParameters(num_frames=9, seconds=3).frames) == (None, 9)
    assert RemoteParameters.instead_of == {"num_frames": "seconds"}
    assert RemoteParameters().frames is None


def test_a_long_prompt_costs_also_where_little_is_made_of_it(pipelines: Pipelines) -> None:
    stages = pipelines.named("chat").stages_for(("text",))
    made = {"llm": {"max_tokens": 1}}
    for tokens, expected in ((0, LEAST), (1024, LEAST), (1024 + 4096, LEAST + 1), (103_424, LEAST + 25), (1e9, MOST)):
        assert cost_of(stages, made, tokens) == pytest.approx(expected)
    assert cost_of(stages, {}, 40) == 1.0


@pytest.mark.parametrize(
    ("text_bytes", "media", "tokens"),
    [
        (4096, [], 1024),
        (0, [AudioInfo("audio/wav", 3600 * 16_000)], 180_000),
        (0, [ImageInfo("image/png", 2800, 2800)], 10_000),
        (0, [VideoInfo("video/mp4", 64, 280, 280, 32.0)], 3200),
        (400, [AudioInfo("audio/wav", 16_000), ImageInfo("image/png", 28, 28)], 151),
    ],
)
def test_what_no_model_counts_is_estimated(text_bytes: int, media: list[MediaInfo], tokens: float) -> None:
    assert estimated_tokens(text_bytes, media) == pytest.approx(tokens)


def test_a_cost_has_a_greatest(pipelines: Pipelines) -> None:
    parameters = {"thinker": {"max_tokens": 1_000_000}, "code2wav": {"steps": 1000}}
    assert cost(pipelines, "qwen2_5_omni", ("text", "audio"), **parameters) <= MOST
    assert MOST * 1024 > 1_000_000
