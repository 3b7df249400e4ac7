"""Payloads between Qwen-Image's stages: what does not fit is refused with key and field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, PromptEmbedsPayload
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.prompts.renderers import load_renderer
from workers.models.qwen_image.parameters import DrawParameters
from workers.models.qwen_image.processors import (
    DescribeProcessor,
    Embeds2LatentsProcessor,
)
from workers.runners.pooling.parameters import PoolingParameters
from workers.stages.engine_args import OmniModelConfig
from workers.stages.stage import Stage
from workers.stages.tensors import from_torch
from workers.stages.types import StageInput

ROWS = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return load_pipelines(Path(__file__).parents[4] / "stage_configs").named("qwen_image")


def stage_input(upstream: dict[str, Payload], parameters: StageParameters, text: str = "a boat") -> StageInput:
    return StageInput(
        job_id="job-1",
        request={"messages": [{"role": "user", "content": text}]},
        media=(),
        upstream=upstream,
        parameters=parameters,
        seed=11,
        capture=False,
    )


def payload(embeds: torch.Tensor | None = None, values: dict[str, Any] | None = None, **tensors: Any) -> Payload:
    information = AdditionalInformationPayload(
        {name: from_torch(tensor) for name, tensor in tensors.items()}, values or {}, key="payloads/job-1"
    )
    return Payload(
        Manifest(kind="embeds", job_id="job-1", stage="encode", attempt=1),
        prompt_embeds=None if embeds is None else PromptEmbedsPayload(from_torch(embeds)),
        additional_information=information,
    )


@pytest.mark.parametrize(("negative", "tokens"), [(None, None), ("", 34 + 5), ("fog", 34 + 3 + 5)])
def test_a_description_becomes_token_ids(
    pipeline: Pipeline, tiny_qwen_images: Callable[[int], Path], negative: str | None, tokens: int | None
) -> None:
    model = OmniModelConfig(tiny_qwen_images(0), "qwen_image", "encode")
    processor = DescribeProcessor(pipeline.stage("encode"), model)
    parameters = PoolingParameters(negative_prompt=negative)
    prompt = processor(stage_input({}, parameters))
    assert prompt.prompt_token_ids == load_renderer("qwen_image", model.path).encode(
        stage_input({}, parameters).request
    )
    assert prompt.drop == 34
    assert tokens == (None if prompt.negative_token_ids is None else len(prompt.negative_token_ids))


def test_embeddings_become_the_denoisings_prompt(pipeline: Pipeline) -> None:
    processor = Embeds2LatentsProcessor(pipeline.stage("denoise"), None)
    parameters = DrawParameters(steps=3)
    given = payload(ROWS, negative_prompt_embeds=ROWS[:2])
    prompt = processor(stage_input({"encode": given}, parameters))
    assert (prompt.parameters, prompt.seed) == (parameters, 11)
    assert torch.equal(prompt.tensors["prompt_embeds"], ROWS)  # type: ignore[arg-type]
    assert torch.equal(prompt.tensors["negative_prompt_embeds"], ROWS[:2])  # type: ignore[arg-type]
    alone = processor(stage_input({"encode": payload(ROWS)}, parameters))
    assert set(alone.tensors) == {"prompt_embeds"}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (payload(), "prompt_embeds"),
        (payload(ROWS, negative_prompt_embeds=ROWS[0]), "tensors.negative_prompt_embeds.shape"),
        (payload(ROWS, negative_prompt_embeds=ROWS.long()), "tensors.negative_prompt_embeds.dtype"),
    ],
)
def test_embeddings_that_do_not_fit(pipeline: Pipeline, given: Payload, field: str) -> None:
    processor = Embeds2LatentsProcessor(pipeline.stage("denoise"), None)
    with pytest.raises(PayloadCorrupt) as refused:
        processor(stage_input({"encode": given}, DrawParameters()))
    assert (refused.value.field, refused.value.key) == (field, "payloads/job-1")


LATENTS = torch.zeros(16, 4, 2)


def test_a_stage_names_itself_and_the_payloads_key(pipeline: Pipeline, tiny_qwen_images: Callable[[int], Path]) -> None:
    for name, upstream, field in (
        ("denoise", {"encode": payload(ROWS / 0)}, "prompt_embeds"),
        ("decode", {"denoise": payload(None, latents=LATENTS / 0)}, "tensors.latents"),
    ):
        stage = Stage(pipeline, pipeline.stage(name), tiny_qwen_images(0))
        with pytest.raises(PayloadCorrupt) as refused:
            stage.input_of(job_id="job-1", request={}, media=(), upstream=upstream, seed=1, has_successors=False)
        error = refused.value
        assert (error.stage, error.key, error.field) == (name, "payloads/job-1", field)
