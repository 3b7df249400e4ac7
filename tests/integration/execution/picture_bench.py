"""A worker's executor with a real stage of a picture pipeline, whose payloads and snapshots tests damage."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from omni_jobs.errors import OmniJobsError
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Claim, Claims, Completion, Failure, NewSnapshot, NewWorker, Outcome, StoredSnapshot
from omni_jobs.metrics.worker_metrics import WorkerMetrics
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, PromptEmbedsPayload
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, payload_key
from omni_jobs.storage.local import LocalObjectStore
from tests.integration.runners.qwen_image_prompts import embeds
from tests.source_pictures import encoded
from workers.execution.executor import Executor
from workers.execution.observers import run_observers
from workers.execution.slots import Slots
from workers.execution.stage_llm import StageLLM
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.stage import Stage
from workers.stages.tensors import from_torch

PIPELINES = load_pipelines(Path(__file__).parents[3] / "stage_configs")
JOB = "job-1"


class RecordingLedger:
    """A ledger without a database: it grants what is ``waiting``, and keeps every end and every snapshot."""

    worker = NewWorker("worker-1", "slot", StageId(PipelineId("any", ""), "any"), "host", 1, 8, "1")

    def __init__(self) -> None:
        self.waiting: list[Claim] = []
        self.completions: list[Completion] = []
        self.errors: list[OmniJobsError] = []
        self.snapshots: list[NewSnapshot] = []

    async def claim(self, at_most: int, *, of_high: int, is_idle: bool) -> Claims:
        granted, self.waiting = self.waiting[:at_most], self.waiting[at_most:]
        return Claims(granted)

    async def report(self, report: Completion | Failure) -> Outcome:
        if isinstance(report, Completion):
            self.completions.append(report)
        else:
            self.errors.append(report.error)
        return Outcome(won=True)

    async def record_snapshot(self, snapshot: NewSnapshot) -> bool:
        self.snapshots.append(snapshot)
        return True

    def report_progress(self, report: object) -> None:
        """Nobody looks."""

    def finish_text(self, stage_run_id: int) -> None:
        pass

    def forget_progress(self, stage_run_id: int) -> None:
        """Nothing is kept."""


class Bench:
    """A worker's executor of one real stage on a store that tests damage."""

    def __init__(self, directory: Path, llm: StageLLM) -> None:
        self.store = LocalObjectStore(directory, sync=False)
        self.ledger = RecordingLedger()
        self.stage = llm.stage
        # The input whose payload is damaged; a job without source pictures has an empty payload of them, too.
        self.earlier = next(name for name, flow in llm.stage.config.inputs.items() if flow != "source_pictures")
        self.broken: list[str] = []
        self.executor = Executor(
            llm,
            self.ledger,  # type: ignore[arg-type]
            self.store,
            Settings(data_dir=directory),
            slots=Slots(8, 0),
            observers=run_observers(self.ledger, WorkerMetrics("any", "1", "any", 8)),  # type: ignore[arg-type]
            on_room=lambda: None,
            on_more=lambda _: None,
            on_broken=self.broken.append,
        )

    async def run(self, upstream: ObjectRef, snapshot: StoredSnapshot | None = None) -> None:
        """Run a stage run to its end, whatever that is."""
        ended = self.executor.ended
        others = {
            name: self.store.put(payload_key(JOB, name, 1), encoded().buffers())
            for name in self.stage.config.inputs
            if name != self.earlier
        }
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
            upstream={self.earlier: upstream, **others},
            has_successors=self.stage.name == "denoise",
            alone=False,
            snapshot=snapshot,
        )
        self.ledger.waiting.append(claim)
        self.executor.ring()
        await until(lambda: self.executor.ended > ended)
        assert self.broken == []

    def key(self) -> str:
        return payload_key(JOB, self.earlier, 1)

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


# Payloads that fit

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
TOKENS = torch.arange(6)
LATENTS = torch.randn(16, 8, 12, generator=torch.Generator().manual_seed(0))
GLM_SIZE = {"height": 64, "width": 96}


def of_embeds(prompt_embeds: torch.Tensor = EMBEDS, negative: torch.Tensor = NEGATIVE) -> Payload:
    return payload("embeds", "encode", {}, prompt_embeds=prompt_embeds, negative_prompt_embeds=negative)


def of_tokens(token_ids: torch.Tensor = TOKENS, **values: Any) -> Payload:
    return payload("image_tokens", "generate", GLM_SIZE | values, token_ids=token_ids)


def of_latents(latents: torch.Tensor = LATENTS) -> Payload:
    return payload("latents", "denoise", {}, latents=latents)


GOOD: Mapping[tuple[str, str], Payload] = {
    ("qwen_image", "denoise"): of_embeds(),
    ("qwen_image", "decode"): of_latents(),
    ("glm_image", "denoise"): of_tokens(),
    ("glm_image", "decode"): of_latents(),
}
