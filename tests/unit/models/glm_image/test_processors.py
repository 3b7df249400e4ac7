"""Prompts and payloads between GLM-Image's stages: what does not fit is refused with key and field."""

from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ConfigError, InvalidRequest, ModelError, PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload
from omni_jobs.pipelines.flows import flow
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import Pipeline
from tests.services.checkpoint import TinyCheckpoints
from tests.source_pictures import encoded, source_of
from workers.models.glm_image.ar_component import GENERATE
from workers.models.glm_image.parameters import DenoiseParameters, GenerateParameters
from workers.models.glm_image.processors import Text2TokensProcessor, Tokens2LatentsProcessor
from workers.models.pictures.latents2pixels import Latents2PixelsProcessor
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.tensors import from_torch
from workers.stages.types import OmniModelRunnerOutput, StageInput


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return load_pipelines(Path(__file__).parents[4] / "stage_configs").named("glm_image")


def stage_input(
    upstream: dict[str, Payload], parameters: StageParameters, content: Any = "A sign 'Open'"
) -> StageInput:
    """The input of a job that edits nothing, unless ``upstream`` says otherwise."""
    request = {"messages": [{"role": "user", "content": content}]}
    return StageInput("job-1", request, (), {"encode": encoded(), **upstream}, parameters, seed=11, capture=False)


def payload(values: dict[str, Any] | None = None, **tensors: torch.Tensor) -> Payload:
    information = AdditionalInformationPayload(
        {name: from_torch(tensor) for name, tensor in tensors.items()}, values or {}, key="payloads/job-1"
    )
    return Payload(Manifest(kind="any", job_id="job-1", stage="any", attempt=1), additional_information=information)


EMPTY = Payload(Manifest(kind="any", job_id="job-1", stage="any", attempt=1))


# text2tokens, and what becomes of the tokens


def test_a_message_becomes_token_ids_and_grids(pipeline: Pipeline, tiny_glm_images: TinyCheckpoints) -> None:
    model = OmniModelConfig(tiny_glm_images(0), "glm_image", "generate")
    processor = Text2TokensProcessor(pipeline.stage("generate"), model)
    parameters = GenerateParameters(width=96, height=64, temperature=0.5, top_p=0.9, top_k=7)
    prompt = processor(stage_input({}, parameters))
    assert prompt.additional_information["grids"].tolist() == [[13, 19], [2, 3]]
    assert prompt.prompt_token_ids[-1] == 16_384
    assert prompt.parameters == ArParameters(
        temperature=0.5, top_p=0.9, top_k=7, max_tokens=13 * 19 + 6, ignore_eos=True
    )
    assert prompt.seed == 11
    with pytest.raises(ConfigError, match="needs a model"):
        Text2TokensProcessor(pipeline.stage("generate"), None)


GRIDS = OmniTokensPrompt([1], {"grids": torch.tensor([[2, 2], [2, 3]])}, ArParameters(), seed=0, capture=False)


def test_the_target_grid_alone_is_handed_on() -> None:
    written = OmniModelRunnerOutput(token_ids=list(range(10)), finish_reason="length", prompt_token_ids=[1])
    output = GENERATE.finish(GRIDS, written)
    assert list(output.token_ids) == [4, 5, 6, 7, 8, 9]
    assert output.values == {"height": 64, "width": 96}
    assert output.finish_reason == "stop"
    assert output.usage == {"prompt_tokens": 1, "completion_tokens": 10}


def test_tokens_that_lack_are_an_error() -> None:
    with pytest.raises(ModelError, match="9 of 10 image tokens") as refused:
        GENERATE.finish(GRIDS, OmniModelRunnerOutput(token_ids=list(range(9))))
    assert refused.value.field == "token_ids"
    with pytest.raises(ModelError) as refused:
        GENERATE.finish(OmniTextPrompt("x", {}, ArParameters(), 0, False), OmniModelRunnerOutput())
    assert refused.value.field == "grids"


@pytest.mark.parametrize(
    ("tokens", "values", "field"),
    [
        (6, {"height": 64, "width": 96}, None),
        (5, {"height": 64, "width": 96}, "tensors.token_ids.shape"),
        (6, {"height": 64}, "values.width"),
        (6, {"height": 64, "width": 1}, "values.width"),
        (6, {"height": "64", "width": 96}, "values.height"),
    ],
)
def test_the_flow_knows_how_many_tokens_a_size_has(tokens: int, values: dict[str, Any], field: str | None) -> None:
    problem = flow("image_tokens").problem(payload(values, token_ids=torch.arange(tokens)))
    assert (problem and problem.field) == field


# tokens2latents


def test_image_tokens_and_glyph_texts_become_a_prompt(pipeline: Pipeline) -> None:
    processor = Tokens2LatentsProcessor(pipeline.stage("denoise"), None)
    given = payload({"height": 64, "width": 96}, token_ids=torch.arange(6))
    prompt = processor(stage_input({"generate": given}, DenoiseParameters(steps=3), "'a' and \"b\""))
    assert torch.equal(prompt.tensors["token_ids"], torch.arange(6))  # type: ignore[arg-type]
    assert prompt.values == {"height": 64, "width": 96, "glyph_texts": ["a", "b"]}
    assert prompt.tensors["source_ids"] == prompt.tensors["source_latents"] == []
    assert (prompt.parameters, prompt.seed) == (DenoiseParameters(steps=3), 11)


def test_a_job_that_asks_for_previews_has_a_prompt_that_does(pipeline: Pipeline) -> None:
    processor = Tokens2LatentsProcessor(pipeline.stage("denoise"), None)
    given = stage_input(
        {"generate": payload({"height": 64, "width": 96}, token_ids=torch.arange(6))}, DenoiseParameters()
    )
    assert not processor(given).previews
    assert processor(given._replace(request={**given.request, "previews": True})).previews


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (EMPTY, "additional_information"),
        (payload({"height": 64, "width": 96}), "tensors.token_ids"),
        (payload({"height": 64, "width": 96}, token_ids=torch.zeros(6)), "tensors.token_ids.dtype"),
        (payload({"height": 64, "width": 96}, token_ids=torch.zeros(2, 3, dtype=torch.int64)), "tensors.token_ids"),
        (payload({"width": 96}, token_ids=torch.arange(6)), "values.height"),
    ],
)
def test_image_tokens_that_are_none(pipeline: Pipeline, given: Payload, field: str) -> None:
    with pytest.raises(PayloadCorrupt) as refused:
        Tokens2LatentsProcessor(pipeline.stage("denoise"), None)(stage_input({"generate": given}, DenoiseParameters()))
    assert str(refused.value.field).startswith(field)


# Source pictures

SOURCES = [source_of(torch.arange(6).view(2, 3), 1), source_of(torch.arange(8).view(2, 4) + 100, 2)]
EDIT = [{"type": "image", "media": 0}, {"type": "image", "media": 1}, {"type": "text", "text": "Join 'em"}]


def test_source_pictures_stand_in_the_prompt_as_their_tokens(
    pipeline: Pipeline, tiny_glm_images: TinyCheckpoints
) -> None:
    processor = Text2TokensProcessor(
        pipeline.stage("generate"), OmniModelConfig(tiny_glm_images(0), "glm_image", "generate")
    )
    given = stage_input({"encode": encoded(SOURCES)}, GenerateParameters(height=128), EDIT)
    prompt = processor(given)
    assert prompt.additional_information["grids"].tolist() == [[4, 3]]  # as wide as the first picture
    assert prompt.additional_information["sources"].tolist() == [[1, 2, 3], [9, 2, 4]]
    ids = [16_384, *range(6), 16_385, 16_384, *range(100, 108), 16_385]
    assert list(prompt.prompt_token_ids[: len(ids)]) == ids
    assert prompt.parameters.max_tokens == 12
    for sources in ([], SOURCES[:1], [*SOURCES, SOURCES[0]]):
        with pytest.raises(InvalidRequest, match=f"{len(sources)} pictures"):
            processor(stage_input({"encode": encoded(sources)}, GenerateParameters(), EDIT))


def test_source_pictures_reach_the_denoising(pipeline: Pipeline) -> None:
    image_tokens = payload({"height": 64, "width": 96}, token_ids=torch.arange(6))
    upstream = {"generate": image_tokens, "encode": encoded(SOURCES)}
    prompt = Tokens2LatentsProcessor(pipeline.stage("denoise"), None)(stage_input(upstream, DenoiseParameters(), EDIT))
    assert prompt.values["glyph_texts"] == []
    for number, source in enumerate(SOURCES):
        assert torch.equal(prompt.tensors["source_ids"][number], source.token_ids)  # type: ignore[index]
        assert torch.equal(prompt.tensors["source_latents"][number], source.latents)  # type: ignore[index]


def test_a_pipeline_without_the_stage_that_encodes_draws(pipeline: Pipeline, tiny_glm_images: TinyCheckpoints) -> None:
    stage = pipeline.stage("generate").model_copy(update={"inputs": {}})
    processor = Text2TokensProcessor(stage, OmniModelConfig(tiny_glm_images(0), "glm_image", "generate"))
    prompt = processor(stage_input({}, GenerateParameters(height=64, width=64)))
    assert prompt.additional_information["sources"].shape == (0, 3)
    assert prompt.additional_information["grids"].tolist() == [[16, 16], [2, 2]]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (EMPTY, "additional_information"),
        (payload(), "tensors.grids"),
        (
            payload(grids=torch.tensor([[2, 2]]), token_ids=torch.arange(5), latents=torch.zeros(16, 80)),
            "tensors.grids",
        ),
        (
            payload(grids=torch.tensor([[-2, -2]]), token_ids=torch.arange(4), latents=torch.zeros(16, 64)),
            "tensors.grids",
        ),
    ],
)
def test_source_pictures_that_are_none(pipeline: Pipeline, given: Payload, field: str) -> None:
    upstream = {"encode": given, "generate": payload({"height": 64, "width": 96}, token_ids=torch.arange(6))}
    with pytest.raises(PayloadCorrupt) as refused:
        Tokens2LatentsProcessor(pipeline.stage("denoise"), None)(stage_input(upstream, DenoiseParameters(), EDIT))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("tokens", "positions", "field"), [(4, 64, None), (4, 60, "tensors.latents.shape"), (0, 0, None)]
)
def test_the_flow_knows_how_many_latents_a_token_has(tokens: int, positions: int, field: str | None) -> None:
    given = payload(
        grids=torch.zeros(1, 2, dtype=torch.int64), token_ids=torch.arange(tokens), latents=torch.zeros(16, positions)
    )
    problem = flow("source_pictures").problem(given)
    assert (problem and problem.field) == field


def test_the_flow_refuses_latents_that_are_no_numbers() -> None:
    latents = torch.full((16, 64), torch.inf)
    given = payload(grids=torch.tensor([[2, 2]]), token_ids=torch.arange(4), latents=latents)
    assert flow("source_pictures").problem(given) == ("an element is not finite", "tensors.latents")


# latents2pixels


def test_latents_become_a_prompt(pipeline: Pipeline) -> None:
    processor = Latents2PixelsProcessor(pipeline.stage("decode"), None)
    latents = torch.randn(16, 8, 12)
    prompt = processor(stage_input({"denoise": payload(latents=latents)}, StageParameters()))
    assert torch.equal(prompt.tensors["latents"], latents)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (EMPTY, "additional_information"),
        (payload(), "tensors.latents"),
        (payload(latents=torch.zeros(16, 8)), "tensors.latents"),
        (payload(latents=torch.zeros(16, 8, 8, dtype=torch.int64)), "tensors.latents.dtype"),
    ],
)
def test_latents_that_are_none(pipeline: Pipeline, given: Payload, field: str) -> None:
    with pytest.raises(PayloadCorrupt) as refused:
        Latents2PixelsProcessor(pipeline.stage("decode"), None)(stage_input({"denoise": given}, StageParameters()))
    assert str(refused.value.field).startswith(field)
