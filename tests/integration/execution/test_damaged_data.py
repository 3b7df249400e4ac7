"""What travels between the stages of pictures, damaged: the one job fails or begins anew, and says of what."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from omni_jobs.errors import OmniJobsError
from omni_jobs.jobs import Claim, Claims, Completion, Failure, NewSnapshot, NewWorker, Outcome, StoredSnapshot
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, PayloadLimits, PromptEmbedsPayload
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, payload_key
from omni_jobs.storage.local import LocalObjectStore
from tests.integration.runners.qwen_image_prompts import embeds
from tests.services.checkpoint import TinyCheckpoints
from workers.execution.executor import Executor
from workers.execution.slots import Slots
from workers.execution.stage_llm import StageLLM
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.stage import Stage
from workers.stages.tensors import from_torch

PIPELINES = load_pipelines(Path(__file__).parents[3] / "stage_configs")
JOB = "job-1"
LIMITS = PayloadLimits(max_bytes=1 << 20)


class RecordingLedger:
    """A ledger without a database: it grants what is ``waiting``, and keeps every end and every snapshot."""

    worker = NewWorker("worker-1", "slot", "any", "any", "host", 1, 8, "1", "")

    def __init__(self) -> None:
        self.waiting: list[Claim] = []
        self.completions: list[Completion] = []
        self.errors: list[OmniJobsError] = []
        self.snapshots: list[NewSnapshot] = []

    async def claim(self, at_most: int, *, of_high: int, is_idle: bool) -> Claims:
        granted, self.waiting = self.waiting[:at_most], self.waiting[at_most:]
        return Claims(granted)

    async def complete(self, completion: Completion) -> Outcome:
        self.completions.append(completion)
        return Outcome(won=True)

    async def fail(self, failure: Failure) -> Outcome:
        self.errors.append(failure.error)
        return Outcome(won=True)

    async def record_snapshot(self, snapshot: NewSnapshot) -> bool:
        self.snapshots.append(snapshot)
        return True

    def report_progress(self, report: object) -> None:
        """Nobody looks."""

    def forget_progress(self, stage_run_id: int) -> None:
        """Nothing is kept."""


class Bench:
    """A worker's executor of one real stage on a store that tests damage."""

    def __init__(self, directory: Path, llm: StageLLM) -> None:
        self.store = LocalObjectStore(directory, sync=False)
        self.ledger = RecordingLedger()
        self.stage = llm.stage
        self.broken: list[str] = []
        self.executor = Executor(
            llm,
            self.ledger,  # type: ignore[arg-type]
            self.store,
            Settings(data_dir=directory),
            slots=Slots(8, 0),
            on_room=lambda: None,
            on_more=lambda _: None,
            on_broken=self.broken.append,
        )

    async def run(self, upstream: ObjectRef, snapshot: StoredSnapshot | None = None) -> None:
        """Run a stage run to its end, whatever that is."""
        ended = self.executor.ended
        (earlier,) = self.stage.config.inputs
        parameters = {"denoise": {"steps": 4, **SIZES[self.stage.pipeline.name]}}
        claim = Claim(
            stage_run_id=1,
            job_id=JOB,
            stage=self.stage.name,
            attempt=1 if snapshot is None else 2,
            pipeline=self.stage.pipeline.name,
            request={
                "messages": [{"role": "user", "content": "A sign 'Open'"}],
                "modalities": ["image"],
                "parameters": parameters,
            },
            media=(),
            seed=3,
            upstream={earlier: upstream},
            has_successors=self.stage.name == "denoise",
            failures={},
            alone=False,
            snapshot=snapshot,
        )
        self.ledger.waiting.append(claim)
        self.executor.ring()
        await until(lambda: self.executor.ended > ended)
        assert self.broken == []

    def key(self) -> str:
        (earlier,) = self.stage.config.inputs
        return payload_key(JOB, earlier, 1)

    def put(self, payload: Payload) -> ObjectRef:
        return self.store.put(self.key(), payload.buffers())

    def output(self) -> bytes:
        """What the last completion left: the payload, or the artifact."""
        completion = self.ledger.completions[-1]
        if completion.inline_payload is not None:
            return completion.inline_payload
        ref = completion.payload or completion.artifacts[0].ref
        return bytes(self.store.read(ref, max_bytes=1 << 20))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def worker(directory: Path, checkpoint: Path, pipeline: str, stage_name: str) -> AsyncIterator[Bench]:
    stage = Stage(PIPELINES[pipeline], PIPELINES[pipeline].stage(stage_name), checkpoint)
    engine = DiffusionEngine(dtype="float32", snapshot_every_steps=1)
    runner = DiffusionRunner(OmniEngineArgs(stage_name, stage.model, "cpu", None, max_in_flight=8, engine=engine))
    async with StageLLM(stage, runner) as llm:
        bench = Bench(directory, llm)
        yield bench
        await bench.executor.drain(10, asyncio.Event())


# Payloads

SIZES: Mapping[str, dict[str, int]] = {"qwen_image": {"width": 64, "height": 48}, "glm_image": {}}


def payload(kind: str, stage: str, values: dict[str, Any], **tensors: torch.Tensor) -> Payload:
    given = {name: from_torch(each) for name, each in tensors.items()}
    prompt_embeds = given.pop("prompt_embeds", None)
    return Payload(
        Manifest(kind, JOB, stage, 1),
        None if prompt_embeds is None else PromptEmbedsPayload(prompt_embeds),
        AdditionalInformationPayload(given, values),
    )


EMBEDS, NEGATIVE = embeds(7, 0), embeds(5, 77)
PACKED = torch.randn(12, 64, generator=torch.Generator().manual_seed(0))
TOKENS = torch.arange(6)
LATENTS = torch.randn(16, 8, 12, generator=torch.Generator().manual_seed(0))
QWEN_SIZE, GLM_SIZE = {"height": 48, "width": 64}, {"height": 64, "width": 96}


class Wrong(NamedTuple):
    """A payload that does not fit, and the field that the error names."""

    payload: Payload
    field: str


def of_embeds(prompt_embeds: torch.Tensor = EMBEDS, negative: torch.Tensor = NEGATIVE) -> Payload:
    return payload("embeds", "encode", {}, prompt_embeds=prompt_embeds, negative_prompt_embeds=negative)


def of_packed(latents: torch.Tensor = PACKED, **values: Any) -> Payload:
    return payload("latents", "denoise", QWEN_SIZE | values, latents=latents)


def of_tokens(token_ids: torch.Tensor = TOKENS, **values: Any) -> Payload:
    return payload("image_tokens", "generate", GLM_SIZE | values, token_ids=token_ids)


def of_latents(latents: torch.Tensor = LATENTS) -> Payload:
    return payload("latents", "denoise", {}, latents=latents)


GOOD: Mapping[tuple[str, str], Payload] = {
    ("qwen_image", "denoise"): of_embeds(),
    ("qwen_image", "decode"): of_packed(),
    ("glm_image", "denoise"): of_tokens(),
    ("glm_image", "decode"): of_latents(),
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
    ("qwen_image", "decode"): {
        "no latents": Wrong(payload("latents", "denoise", QWEN_SIZE), "tensors.latents"),
        "fewer than the size has": Wrong(of_packed(PACKED[:-1]), "latents.shape"),
        "another model's": Wrong(of_packed(PACKED[:, :32].clone()), "latents.shape"),
        "of another rank": Wrong(of_packed(PACKED[None]), "tensors.latents.shape"),
        "integers": Wrong(of_packed(PACKED.long()), "tensors.latents.dtype"),
        "not finite": Wrong(of_packed(PACKED / 0), "tensors.latents"),
        "a height of text": Wrong(of_packed(height="48"), "values.height"),
        "a width that does not divide": Wrong(of_packed(width=65), "width"),
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
    ("glm_image", "decode"): {
        "no latents": Wrong(payload("latents", "denoise", {}), "tensors.latents"),
        "another model's": Wrong(of_latents(LATENTS[:15]), "latents"),
        "of another rank": Wrong(of_latents(LATENTS[0]), "tensors.latents.shape"),
        "half an image token": Wrong(of_latents(LATENTS[:, :7].clone()), "latents"),
        "integers": Wrong(of_latents(LATENTS.long()), "tensors.latents.dtype"),
        "not finite": Wrong(of_latents(LATENTS / 0), "tensors.latents"),
    },
}


def damaged(bench: Bench, good: Payload) -> Iterator[tuple[str, ObjectRef, str]]:
    """Yield what happens to any payload: its name, the ref, and the field that the error names."""
    data = b"".join(good.buffers())
    (earlier,) = bench.stage.config.inputs
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
    yield "truncated", whole, earlier
    bench.store.put(bench.key(), [data[:-1] + bytes([data[-1] ^ 1])])
    yield "changed", whole, earlier
    bench.store.delete([bench.key()])
    yield "missing", whole, earlier


async def check(bench: Bench, name: str, ref: ObjectRef, field: str) -> None:
    """Run a stage run of this payload: it fails, and its error names stage, key and field."""
    before = len(bench.ledger.errors)
    await bench.run(ref)
    assert len(bench.ledger.errors) == before + 1, name
    error = bench.ledger.errors[-1]
    assert (error.stage, error.key, error.field) == (bench.stage.name, bench.key(), field), (name, error)
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


# Snapshots


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
    """``model={…}`` changes what the model itself saved, everything else what its worker added."""

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
        stored = Payload.decode(data, LIMITS, key=taken.ref.key)

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
    information = Payload.decode(data, LIMITS).additional_information
    assert information is not None
    return torch.from_numpy(information.tensor("latents").numpy().copy())


def check_warnings(name: str, found: list[Mapping[str, Any]], end: str) -> None:
    assert [each["code"] for each in found] == ["snapshot_unusable"], (name, found)
    assert end in found[0]["message"], (name, found)
