"""What travels between the stages of pictures, damaged: the one job fails, and its error names stage, key and field."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from omni_jobs.payloads import Payload
from omni_jobs.storage import ObjectRef
from tests.integration.execution.picture_bench import (
    EMBEDS,
    GLM_SIZE,
    GOOD,
    LATENTS,
    NEGATIVE,
    TOKENS,
    Bench,
    of_embeds,
    of_latents,
    of_tokens,
    payload,
    worker,
)
from tests.services.checkpoint import TinyCheckpoints


class Wrong(NamedTuple):
    """A payload that does not fit, and the field that the error names."""

    payload: Payload
    field: str


WRONG_LATENTS: Mapping[str, Wrong] = {
    "no latents": Wrong(payload("latents", "denoise", {}), "tensors.latents"),
    "another model's": Wrong(of_latents(LATENTS[:15]), "tensors.latents.shape"),
    "of another rank": Wrong(of_latents(LATENTS[0]), "tensors.latents.shape"),
    "half an image token": Wrong(of_latents(LATENTS[:, :7].clone()), "latents.shape"),
    "integers": Wrong(of_latents(LATENTS.long()), "tensors.latents.dtype"),
    "not finite": Wrong(of_latents(LATENTS / 0), "tensors.latents"),
}
WRONG: Mapping[tuple[str, str], Mapping[str, Wrong]] = {
    ("qwen_image", "denoise"): {
        "no embeddings": Wrong(payload("embeds", "encode", {}), "prompt_embeds"),
        "no token": Wrong(of_embeds(EMBEDS[:0]), "prompt_embeds.shape"),
        "another model's": Wrong(of_embeds(EMBEDS[:, :64].clone(), NEGATIVE[:, :64].clone()), "prompt_embeds.shape"),
        "two widths": Wrong(of_embeds(negative=NEGATIVE[:, :64].clone()), "tensors.negative_prompt_embeds.shape"),
        "negative ones of another rank": Wrong(of_embeds(negative=NEGATIVE[0]), "tensors.negative_prompt_embeds.shape"),
        "negative ones of integers": Wrong(of_embeds(negative=NEGATIVE.long()), "tensors.negative_prompt_embeds.dtype"),
        "not finite": Wrong(of_embeds(EMBEDS / 0), "prompt_embeds"),
        "negative ones not finite": Wrong(of_embeds(negative=NEGATIVE * torch.nan), "tensors.negative_prompt_embeds"),
    },
    ("glm_image", "denoise"): {
        "no tokens": Wrong(payload("image_tokens", "generate", GLM_SIZE), "tensors.token_ids"),
        "fewer than the size has": Wrong(of_tokens(TOKENS[:-1]), "tensors.token_ids.shape"),
        "of another rank": Wrong(of_tokens(TOKENS[None]), "tensors.token_ids.shape"),
        "floats": Wrong(of_tokens(TOKENS.float()), "tensors.token_ids.dtype"),
        "another model's": Wrong(of_tokens(TOKENS + 16_384), "token_ids"),
        "negative": Wrong(of_tokens(TOKENS - 9), "token_ids"),
        "a height of text": Wrong(of_tokens(height="64"), "values.height"),
        "a side that is too long": Wrong(of_tokens(torch.arange(2 * 96), height=64, width=3072), "width"),
    },
    ("qwen_image", "decode"): WRONG_LATENTS,
    ("glm_image", "decode"): WRONG_LATENTS,
}


def damaged(bench: Bench, good: Payload) -> Iterator[tuple[str, ObjectRef, str]]:
    """Yield what happens to any payload: its name, the ref, and the field that the error names."""
    data = b"".join(good.buffers())
    for name in ("job_id", "stage", "kind"):
        other = replace(good, manifest=replace(good.manifest, **{name: "another"}))
        yield f"another {name}", bench.put(other), f"manifest.{name}"
    version = data.replace(rb"\"version\":1", rb"\"version\":2")
    assert version != data
    yield "another version", bench.store.put(bench.key(), [version]), "manifest.version"
    yield "no payload", bench.store.put(bench.key(), [b"PK" + data]), "header"
    last = {"embeds": "negative_prompt_embeds", "image_tokens": "token_ids", "latents": "latents"}
    cut = f"tensors.{last[good.manifest.kind]}.data_offsets"
    yield "cut by its writer", bench.store.put(bench.key(), [data[:-4]]), cut
    whole = bench.put(good)
    bench.store.put(bench.key(), [data[:-4]])
    yield "truncated", whole, bench.earlier
    bench.store.put(bench.key(), [data[:-1] + bytes([data[-1] ^ 1])])
    yield "changed", whole, bench.earlier
    bench.store.delete([bench.key()])
    yield "missing", whole, bench.earlier


async def check(bench: Bench, name: str, ref: ObjectRef, field: str) -> None:
    """Run a stage run of this payload: it fails, and its error names stage, key and field."""
    before = len(bench.ledger.errors)
    await bench.run(ref)
    assert len(bench.ledger.errors) == before + 1, name
    error = bench.ledger.errors[-1]
    assert (error.stage, error.field) == (bench.stage.name, field), (name, error)
    keys = str(error.key).split(", ")  # what the model refuses may be of each payload that the prompt is made of
    assert bench.key() in keys, (name, error)
    assert error.code == "model_error" or len(keys) == 1, (name, error)
    assert error.to_dict().items() >= {"stage": error.stage, "key": error.key, "field": field}.items()
    assert not error.retryable


@pytest.mark.parametrize(("pipeline", "stage"), GOOD)
async def test_a_damaged_payload_fails_the_one_job(
    tmp_path: Path,
    tiny_qwen_images: TinyCheckpoints,
    tiny_glm_images: TinyCheckpoints,
    pipeline: str,
    stage: str,
) -> None:
    checkpoint = (tiny_qwen_images if pipeline == "qwen_image" else tiny_glm_images)(0)
    good = GOOD[pipeline, stage]
    async with worker(tmp_path, checkpoint, pipeline, stage) as bench:
        await bench.run(bench.put(good))
        expected = bench.output()
        for name, each in WRONG[pipeline, stage].items():
            await check(bench, name, bench.put(each.payload), each.field)
        for name, ref, field in damaged(bench, good):
            await check(bench, name, ref, field)
        assert len(bench.ledger.completions) == 1
        await bench.run(bench.put(good))
        assert bench.output() == expected
