"""Payloads between Qwen-Image-Edit's stages: what does not fit is refused with key and field."""

from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload
from omni_jobs.pipelines.flows import flow
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from tests.unit.models.qwen_image.test_processors import ROWS, stage_input
from tests.unit.models.qwen_image.test_processors import payload as payload_of_embeds
from workers.models.qwen_image.parameters import EditParameters, SourcesParameters
from workers.models.qwen_image.processors import DescribeProcessor, EditProcessor, ScaleProcessor
from workers.stages.tensors import from_torch

TOKENS = torch.arange(16 * 64.0).reshape(16, 64)
VALUES = {"source_sizes": [[64, 64]], "default_size": [896, 1184]}


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return load_pipelines(Path(__file__).parents[4] / "stage_configs").named("qwen_image_edit")


def sources(tokens: torch.Tensor | None = TOKENS, **values: Any) -> Payload:
    tensors = {} if tokens is None else {"source_tokens": from_torch(tokens)}
    kept = {name: each for name, each in {**VALUES, **values}.items() if each is not None}
    return Payload(
        Manifest(kind="source_tokens", job_id="job-1", stage="sources", attempt=1),
        additional_information=AdditionalInformationPayload(tensors, kept, key="payloads/job-1"),
    )


@pytest.mark.parametrize(
    ("given", "height", "width"),
    [({}, 896, 1184), ({"height": 64}, 64, 1184), ({"height": 64, "width": 128}, 64, 128)],
)
def test_payloads_become_the_denoisings_prompt(
    pipeline: Pipeline, given: dict[str, int], height: int, width: int
) -> None:
    processor = EditProcessor(pipeline.stage("denoise"), None)
    upstream = {"encode": payload_of_embeds(ROWS, negative_prompt_embeds=ROWS[:2]), "sources": sources()}
    prompt = processor(stage_input(upstream, EditParameters(steps=3, **given)))
    assert prompt.parameters == EditParameters(steps=3, height=height, width=width)
    assert (prompt.values, prompt.seed) == ({"source_sizes": [[64, 64]]}, 11)
    expected = {"prompt_embeds": ROWS, "negative_prompt_embeds": ROWS[:2], "source_tokens": TOKENS}
    assert prompt.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(prompt.tensors[name], tensor)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (sources(None), "tensors.source_tokens"),
        (sources(TOKENS.long()), "tensors.source_tokens.dtype"),
        (sources(TOKENS[None]), "tensors.source_tokens.shape"),
        (sources(source_sizes=None), "values.source_sizes"),
        (sources(source_sizes="64x64"), "values.source_sizes"),
        (sources(default_size=None), "values.default_size"),
        (sources(default_size=[64]), "values.default_size"),
        (sources(default_size=[64, 65]), "values.default_size"),
        (sources(default_size=[64, "64"]), "values.default_size"),
    ],
)
def test_sources_that_do_not_fit(pipeline: Pipeline, given: Payload, field: str) -> None:
    processor = EditProcessor(pipeline.stage("denoise"), None)
    with pytest.raises(PayloadCorrupt) as refused:
        processor(stage_input({"encode": payload_of_embeds(ROWS), "sources": given}, EditParameters()))
    assert (refused.value.field, refused.value.key) == (field, "payloads/job-1")


def test_the_flow_refuses_sources_that_are_no_numbers() -> None:
    assert flow("source_tokens").problem(sources(TOKENS / 0)) == ("an element is not finite", "tensors.source_tokens")


def test_a_stage_without_pictures_wall_or_model_says_so(pipeline: Pipeline) -> None:
    scale = ScaleProcessor(pipeline.stage("sources"), None)
    with pytest.raises(ModelError) as refused:
        scale(stage_input({}, SourcesParameters()))
    assert refused.value.field == "messages"
    content = [{"type": "image", "media": 0}]
    without_wall = stage_input({}, SourcesParameters())._replace(
        request={"messages": [{"role": "user", "content": content}]}, media=(b"",)
    )
    with pytest.raises(ConfigError) as unwalled:
        scale(without_wall)
    assert unwalled.value.field == "messages.0.content.0.image_url.url"
    with pytest.raises(ConfigError):
        DescribeProcessor(pipeline.stage("encode"), None)
