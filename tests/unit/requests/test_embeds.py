"""Embeddings as a job's prompt: what is admitted, every refusal, and what the processor makes of them."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from omni_jobs.errors import InvalidRequest, ModelError, PayloadCorrupt
from omni_jobs.new_job import NewJob
from omni_jobs.payloads import PromptEmbedsPayload, Tensor
from omni_jobs.pipelines.loader import Pipelines, load_pipeline
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.stage import Stage

SHIPPED = Path(__file__).parents[3] / "stage_configs" / "qwen2_5_omni.yaml"
REQUEST = {"model": "qwen2_5_omni", "seed": 1}
Admit = Callable[..., NewJob]


@pytest.fixture(scope="module")
def pipelines() -> Pipelines:
    shipped = load_pipeline(SHIPPED)
    return Pipelines([shipped.model_copy(update={"accepts": (*shipped.accepts, "prompt_embeds")})])


@pytest.fixture(scope="module")
def hidden_size(tiny_checkpoint: Path) -> int:
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    return int(config["thinker_config"]["text_config"]["hidden_size"])


@pytest.fixture(scope="module")
def admitting(pipelines: Pipelines, tiny_checkpoint: Path) -> Admit:
    settings = Settings(models={"qwen2_5_omni": tiny_checkpoint})

    def call(beside: bytes | None = None, **body: Any) -> NewJob:
        return admit(parse({**REQUEST, **body}, settings, prompt_embeds=beside), pipelines, settings)

    return call


def rows(tokens: int, hidden_size: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.random.default_rng(tokens).normal(size=(tokens, hidden_size)).astype(dtype)


def inline(data: bytes) -> dict[str, str]:
    return {"data": base64.b64encode(data).decode()}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_inline_and_beside_are_the_same_job(admitting: Admit, hidden_size: int, dtype: str) -> None:
    data = save({"prompt_embeds": rows(5, hidden_size, dtype)})
    for found in (admitting(data), admitting(prompt_embeds=inline(data))):
        assert found.request["messages"] == []
        assert found.request["prompt_embeds"] == {"media": 0}
        assert [medium.data for medium in found.unstored] == [data]


def test_the_digest_covers_the_file(admitting: Admit, hidden_size: int) -> None:
    one, other = (save({"prompt_embeds": rows(n, hidden_size)}) for n in (3, 4))
    assert admitting(one).request_digest == admitting(one).request_digest
    assert admitting(one).request_digest != admitting(other).request_digest


def test_bfloat16_and_what_other_libraries_write(admitting: Admit, hidden_size: int) -> None:
    import torch
    from safetensors.torch import save as save_torch

    embeds = torch.randn(4, hidden_size, dtype=torch.bfloat16)
    written_by_torch = save_torch({"prompt_embeds": embeds}, metadata={"format": "pt"})
    for data in (written_by_torch, PromptEmbedsPayload(Tensor.from_numpy(rows(2, hidden_size))).encode()):
        assert [medium.data for medium in admitting(data).unstored] == [data]


def refusals(hidden_size: int) -> dict[str, tuple[dict[str, Any], bytes | None, str, str]]:
    good = save({"prompt_embeds": rows(3, hidden_size)})
    not_finite = rows(3, hidden_size)
    not_finite[1, 0] = np.nan
    pickled = b"\x80\x02}q\x00(X\x0d\x00\x00\x00prompt_embedsq\x01K\x01u."
    return {
        "messages as well": (
            {"messages": [{"role": "user", "content": "x"}]}, good, "prompt_embeds", "messages as well"),
        "twice": ({"prompt_embeds": inline(good)}, good, "prompt_embeds", "twice"),
        "not base64": ({"prompt_embeds": {"data": "%%%"}}, None, "prompt_embeds.data", "base64"),
        "empty": ({"prompt_embeds": {"data": ""}}, None, "prompt_embeds.data", "no bytes"),
        "unknown key": ({"prompt_embeds": {**inline(good), "x": 1}}, None, "prompt_embeds.x", "unknown key"),
        "a pickle": ({}, pickled, "prompt_embeds.header", ""),
        "truncated": ({}, good[:-1], "prompt_embeds.data_offsets", "truncated"),
        "another tensor": ({}, save({"embeds": rows(3, hidden_size)}), "prompt_embeds", "missing"),
        "integers": ({}, save({"prompt_embeds": np.ones((3, hidden_size), np.int64)}), "prompt_embeds.dtype", "I64"),
        "float64": ({}, save({"prompt_embeds": rows(3, hidden_size, "float64")}), "prompt_embeds.dtype", "F64"),
        "rank": ({}, save({"prompt_embeds": rows(3, hidden_size)[None]}), "prompt_embeds.shape", "rank 3"),
        "hidden size": ({}, save({"prompt_embeds": rows(3, hidden_size + 1)}), "prompt_embeds.shape", "hidden size"),
        "no rows": ({}, save({"prompt_embeds": rows(0, hidden_size)}), "prompt_embeds.shape", "0 tokens"),
        "too long": ({}, save({"prompt_embeds": rows(40_000, hidden_size)}), "prompt_embeds.shape", "40000 tokens"),
        "not finite": ({}, save({"prompt_embeds": not_finite}), "prompt_embeds", "finite"),
    }  # fmt: skip


@pytest.mark.parametrize("name", refusals(8))
def test_refused(admitting: Admit, hidden_size: int, name: str) -> None:
    body, beside, field, complaint = refusals(hidden_size)[name]
    with pytest.raises(InvalidRequest) as caught:
        admitting(beside, **body)
    assert caught.value.field == field
    assert complaint in caught.value.message


def test_the_processor_passes_them_on(
    pipelines: Pipelines, admitting: Admit, tiny_checkpoint: Path, hidden_size: int
) -> None:
    pipeline = pipelines["qwen2_5_omni"]
    stage = Stage(pipeline, pipeline.stage("thinker"), tiny_checkpoint)
    assert stage.model is not None
    assert stage.model.prompt_embeds
    embeds = rows(6, hidden_size)
    job = admitting(save({"prompt_embeds": embeds}))

    def made_of(data: bytes) -> OmniTokensPrompt:
        stage_input = stage.input_of(
            job_id="j", request=job.request, media=[data], upstream={}, seed=1, has_successors=True
        )
        prompt = stage.make_prompt(stage_input)
        assert isinstance(prompt, OmniTokensPrompt)
        return prompt

    prompt = made_of(job.unstored[0].data)
    assert prompt.prompt_embeds is not None
    assert np.array_equal(prompt.prompt_embeds.numpy(), embeds)
    assert (list(prompt.prompt_token_ids), prompt.capture) == ([], True)

    with pytest.raises(ModelError) as wrong:
        made_of(save({"prompt_embeds": rows(6, hidden_size + 1)})).for_vllm(hidden_size)
    assert wrong.value.field == "prompt_embeds.shape"
    with pytest.raises(PayloadCorrupt) as corrupt:
        made_of(job.unstored[0].data[:-4])
    assert corrupt.value.stage == "thinker"


def test_a_talker_never_takes_them(pipelines: Pipelines, tiny_checkpoint: Path) -> None:
    pipeline = pipelines["qwen2_5_omni"]
    talker = Stage(pipeline, pipeline.stage("talker"), tiny_checkpoint)
    assert talker.model is not None
    assert not talker.model.prompt_embeds


def test_a_scalar_of_our_own_is_refused_before_any_file() -> None:
    with pytest.raises(Exception, match="rank 0"):
        PromptEmbedsPayload(Tensor.from_numpy(np.float32(1.0).reshape(())))
