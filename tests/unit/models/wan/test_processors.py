"""Payloads between Wan's stages: what does not fit is refused with key and field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from workers.models.wan.parameters import AnimateParameters, FilmParameters, PlaybackParameters, TextParameters
from workers.models.wan.processors import AnimateProcessor, FilmProcessor, Latents2FramesProcessor, NarrateProcessor
from workers.stages.engine_args import OmniModelConfig
from workers.stages.tensors import from_torch
from workers.stages.types import StageInput

STATES = torch.arange(12.0).reshape(3, 4)
LATENTS = torch.zeros(16, 2, 4, 6)


def pipeline(name: str) -> Pipeline:
    return load_pipelines(Path(__file__).parents[4] / "stage_configs").named(name)


def stage_input(upstream: dict[str, Payload], parameters: Any, **request: Any) -> StageInput[Any]:
    return StageInput(
        job_id="job-1",
        request={"messages": [{"role": "user", "content": "a boat"}], **request},
        media=(),
        upstream=upstream,
        parameters=parameters,
        seed=11,
        capture=False,
    )


def payload(stage: str, **tensors: torch.Tensor) -> Payload:
    information = AdditionalInformationPayload(
        {name: from_torch(tensor) for name, tensor in tensors.items()}, {}, key="payloads/job-1"
    )
    manifest = Manifest(kind="states", job_id="job-1", stage=stage, attempt=1)
    return Payload(manifest, additional_information=information)


@pytest.mark.parametrize(("negative", "tokens"), [(None, None), ("", 1), ("fog", 5)])
def test_a_description_becomes_token_ids(
    tiny_wans: Callable[[int], Path], negative: str | None, tokens: int | None
) -> None:
    stage = pipeline("wan").stage("encode")
    make = NarrateProcessor(stage, OmniModelConfig(tiny_wans(0), "wan", "encode"))
    prompt = make(stage_input({}, TextParameters(negative_prompt=negative)))
    found = {name: (ids.dtype, len(ids)) for name, ids in prompt.tensors.items()}  # type: ignore[union-attr]
    expected = {"prompt_ids": (torch.int64, 8)}  # "▁a▁boat" and the end
    if tokens is not None:
        expected["negative_prompt_ids"] = (torch.int64, tokens)
    assert found == expected


def test_states_and_latents_are_handed_on() -> None:
    film = FilmProcessor(pipeline("wan").stage("denoise"), None)
    states = payload("encode", prompt_embeds=STATES, negative_prompt_embeds=STATES[:1])
    prompt = film(stage_input({"encode": states}, FilmParameters(), previews=True))
    assert {name: tuple(each.shape) for name, each in prompt.tensors.items()} == {  # type: ignore[union-attr]
        "prompt_embeds": (3, 4),
        "negative_prompt_embeds": (1, 4),
    }
    assert (prompt.seed, prompt.previews, prompt.parameters) == (11, True, FilmParameters())
    animate = AnimateProcessor(pipeline("wan_i2v").stage("denoise"), None)
    given = {"encode": payload("encode", prompt_embeds=STATES), "begin": payload("begin", begin_latents=LATENTS)}
    assert set(animate(stage_input(given, AnimateParameters())).tensors) == {"prompt_embeds", "begin_latents"}
    decode = Latents2FramesProcessor(pipeline("wan").stage("decode"), None)
    latents = decode(stage_input({"denoise": payload("denoise", latents=LATENTS)}, PlaybackParameters())).tensors
    assert torch.equal(latents["latents"], LATENTS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("processor", "pipeline_name", "stage", "name", "tensor", "field"),
    [
        (FilmProcessor, "wan", "denoise", "prompt_embeds", None, "tensors.prompt_embeds"),
        (FilmProcessor, "wan", "denoise", "prompt_embeds", STATES[0], "tensors.prompt_embeds"),
        (FilmProcessor, "wan", "denoise", "prompt_embeds", STATES.long(), "tensors.prompt_embeds"),
        (AnimateProcessor, "wan_i2v", "denoise", "begin_latents", None, "tensors.begin_latents"),
        (AnimateProcessor, "wan_i2v", "denoise", "begin_latents", LATENTS[0], "tensors.begin_latents"),
        (Latents2FramesProcessor, "wan", "decode", "latents", LATENTS[:, 0], "tensors.latents"),
    ],
)
def test_a_payload_that_does_not_fit_names_its_field(
    processor: Any, pipeline_name: str, stage: str, name: str, tensor: torch.Tensor | None, field: str
) -> None:
    config = pipeline(pipeline_name).stage(stage)
    tensors = {"prompt_embeds": STATES, "begin_latents": LATENTS, "latents": LATENTS, name: tensor}
    given = payload("any", **{each: found for each, found in tensors.items() if found is not None})
    with pytest.raises(PayloadCorrupt) as refused:
        processor(config, None)(stage_input(dict.fromkeys(config.inputs, given), FilmParameters()))
    assert str(refused.value.field).startswith(field)
    assert refused.value.key == "payloads/job-1"
