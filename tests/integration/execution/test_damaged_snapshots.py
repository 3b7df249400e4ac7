"""Snapshots of pictures, damaged: the warning says of what, and the job begins anew to the same latents."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from omni_jobs.jobs import StoredSnapshot
from omni_jobs.payloads import Payload, PromptEmbedsPayload
from omni_jobs.storage import ObjectRef
from tests.integration.execution.picture_bench import EMBEDS, GOOD, until, worker
from tests.services.checkpoint import TinyCheckpoints
from workers.stages.tensors import from_torch

MAX_BYTES = 1 << 20


class Damage(NamedTuple):
    """A change of a snapshot's payload, and the field that the warning names."""

    change: Callable[[Payload], Payload]
    field: str


def with_latents(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Payload], Payload]:
    def changed(stored: Payload) -> Payload:
        information = stored.additional_information
        assert information is not None
        latents = torch.from_numpy(information.tensor("latents").numpy().copy())
        return replace(
            stored, additional_information=replace(information, tensors={"latents": from_torch(change(latents))})
        )

    return changed


def with_values(**values: Any) -> Callable[[Payload], Payload]:
    """``saved`` changes what the model itself saved, ``origin`` what its worker said of itself."""

    def changed(stored: Payload) -> Payload:
        information = stored.additional_information
        assert information is not None
        given = {name: each for name, each in values.items() if name not in ("saved", "origin")}
        for ours, name in (("saved", "values"), ("origin", "origin")):
            if ours in values:
                given[name] = {**information.values[name], **values[ours]}
        return replace(stored, additional_information=replace(information, values={**information.values, **given}))

    return changed


def not_finite(latents: torch.Tensor) -> torch.Tensor:
    latents.flatten()[5] = torch.nan
    return latents


SNAPSHOTS: Mapping[str, Damage] = {
    "another shape": Damage(with_latents(lambda latents: latents[:-1]), "tensors.latents"),
    "another dtype": Damage(with_latents(lambda latents: latents.bfloat16()), "tensors.latents"),
    "not finite": Damage(with_latents(not_finite), "tensors.latents"),
    "another model": Damage(with_values(saved={"model": "0" * 64}), "values.model"),
    "another dtype of the model": Damage(with_values(saved={"dtype": "float16"}), "values.dtype"),
    "another seed": Damage(with_values(saved={"seed": 4}), "values.seed"),
    "more steps than there are": Damage(with_values(saved={"steps_done": 5}), "values.steps_done"),
    "another family": Damage(with_values(origin={"family": "other"}), "values.origin.family"),
    "another pipeline file": Damage(with_values(origin={"pipeline_digest": "0"}), "values.origin.pipeline_digest"),
    "another format": Damage(with_values(format=2), "values.format"),
    "no values": Damage(
        lambda stored: replace(
            stored, additional_information=None, prompt_embeds=PromptEmbedsPayload(from_torch(EMBEDS))
        ),
        "values",
    ),
    "another job": Damage(
        lambda stored: replace(stored, manifest=replace(stored.manifest, job_id="x")), "manifest.job_id"
    ),
}


@pytest.mark.parametrize(("pipeline", "version"), [("qwen_image", "version"), ("glm_image", "saved_by")])
async def test_a_damaged_snapshot_is_named_and_the_job_begins_anew(
    tmp_path: Path, tiny_qwen_images: TinyCheckpoints, tiny_glm_images: TinyCheckpoints, pipeline: str, version: str
) -> None:
    checkpoint = (tiny_qwen_images if pipeline == "qwen_image" else tiny_glm_images)(0)
    async with worker(tmp_path, checkpoint, pipeline, "denoise") as bench:
        upstream = bench.put(GOOD[pipeline, "denoise"])
        await bench.run(upstream)
        await until(lambda: bench.ledger.snapshots)
        expected, taken = latents_of(bench.output()), bench.ledger.snapshots[0]
        data = bytes(bench.store.read(taken.ref, max_bytes=1 << 20))
        stored = Payload.decode(data, MAX_BYTES, key=taken.ref.key)

        async def warnings(ref: ObjectRef) -> list[Mapping[str, Any]]:
            await bench.run(upstream, StoredSnapshot(ref, taken.steps_done, 1))
            assert bench.ledger.errors == []
            assert torch.equal(latents_of(bench.output()), expected)
            return list(bench.ledger.completions[-1].warnings)

        assert await warnings(taken.ref) == []
        cases = {**SNAPSHOTS, "another version": Damage(with_values(saved={version: "0"}), f"values.{version}")}
        for name, damage in cases.items():
            ref = bench.store.put(taken.ref.key, damage.change(stored).buffers())
            check_warnings(name, await warnings(ref), f"(stage denoise, key {ref.key}, field {damage.field})")
        for name, cut in (("cut by its writer", data[:-4]), ("no payload", b"PK" + data)):
            ref = bench.store.put(taken.ref.key, [cut])
            check_warnings(name, await warnings(ref), f"(stage denoise, key {ref.key}, field ")
        for name, objects in (
            ("truncated", [data[:-4]]),
            ("changed", [data[:-1] + bytes([data[-1] ^ 1])]),
            ("missing", []),
        ):
            bench.store.delete([taken.ref.key])
            if objects:
                bench.store.put(taken.ref.key, objects)
            check_warnings(name, await warnings(taken.ref), f"(stage denoise, key {taken.ref.key}")


def latents_of(data: bytes) -> torch.Tensor:
    information = Payload.decode(data, MAX_BYTES).additional_information
    assert information is not None
    return torch.from_numpy(information.tensor("latents").numpy().copy())


def check_warnings(name: str, found: list[Mapping[str, Any]], end: str) -> None:
    assert [each["code"] for each in found] == ["snapshot_unusable"], (name, found)
    assert end in found[0]["message"], (name, found)
