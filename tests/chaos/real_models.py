"""The same question asked of pipelines of real models: on the embedded stack, few jobs, slow.

``qwen2_5_omni``, ``qwen3_omni``, ``qwen_image`` and ``wan`` have three engines and a tiny checkpoint each; the latter
two go on from snapshots.
``voice`` hears, thinks and speaks with real weights. The engines run in processes of their own, as on a GPU, and are
killed alone too. Every job is one of a few whose results were taken undisturbed at the start: whatever dies, the same
comes out.
"""

import argparse
import io
import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from sqlalchemy import create_engine

from omni_jobs.client import Client, user_message
from omni_jobs.errors import OmniJobsError
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.stack.sentinel import processes_of
from omni_jobs.views import JobView
from tests.chaos.checker import Sampler, StoredBytes, check, unfinished, wait_until_collected
from tests.chaos.clients import Record
from tests.chaos.recovery import Recoveries, percentile
from tests.stage_configs import write_stage_configs

__all__ = ["PIPELINES", "differ_by", "run_real_models"]

ROOT = Path(__file__).parents[2]
LEASE_S = 5.0
EVERY_S = 20.0
OPEN_JOBS = 4
LIMIT_S = 300.0
WAV_HEADER_BYTES = 44
KINDS = ("kill_worker", "kill_engine", "stop_worker_past_its_lease", "stop_worker_briefly", "kill_api", "kill_rescuer")


@dataclass(frozen=True)
class Subject:
    """A pipeline under faults. ``models``: where its checkpoints are, or are made in a directory.

    ``bodies``: its jobs, the same every time. ``rounding``: by how much two values of an artifact of the same job may
    differ, samples of sound of 32,767 and colours of pictures of 255; of a video it is the mean of a frame's, because
    H.264 makes more of a colour that lies between two values. ``engines``: settings of its stages' engines that differ
    from the shipped ones.
    """

    models: Callable[[Path], dict[str, Path]]
    bodies: Callable[[Path], list[dict[str, Any]]]
    rounding: int
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Asked:
    """A request and what it gave when nothing was disturbed."""

    body: dict[str, Any]
    result: dict[str, Any]
    artifacts: dict[str, bytes]  # by name


def run_real_models(options: argparse.Namespace) -> int:
    """One run; the exit code."""
    console = Console()
    subject = PIPELINES[options.pipeline]
    directory = Path(tempfile.mkdtemp(prefix="omni-jobs-chaos-"))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # an EngineCore process under each worker
    settings = Settings(
        data_dir=directory / "data",
        stage_configs=write_stage_configs(directory / "configs", options.pipeline, subject.engines),
        models=subject.models(directory),
        spool_dir=directory / "spool",
        lease_s=LEASE_S,
        heartbeat_s=0.5,
        orphan_after_s=5.0,
        sweep_every_s=3.0,
        keep_payloads_s=30.0,
    )
    with EmbeddedStack(settings, pipelines=[options.pipeline]) as stack, Client(stack.url) as client:
        console.print(f"{options.pipeline} is up at {stack.url}; the undisturbed results first")
        report = _Run(stack, client, options, subject, console).carry_out(subject.bodies(directory))
    for sentence in report["violations"]:
        console.print(f"violation: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(
        {name: report[name] for name in ("jobs", "faults", "lost", "doubled", "stuck", "wasted_runs", "recovery")}
    )
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if report["violations"] or options.keep:
        console.print(f"the data directory is kept: {directory}", soft_wrap=True)
    else:
        shutil.rmtree(directory)
    return 1 if report["violations"] else 0


class _Run:
    def __init__(
        self,
        stack: EmbeddedStack,
        client: Client,
        options: argparse.Namespace,
        subject: Subject,
        console: Console,
    ) -> None:
        self._stack = stack
        self._client = client
        self._options = options
        self._subject = subject
        stages = load_pipelines(stack.settings.resolved_stage_configs)[options.pipeline].stages
        self._workers = [f"worker {options.pipeline}.{stage}" for stage in stages]
        self._console = console
        self._random = random.Random(options.seed)
        self._engine = create_engine(stack.settings.resolved_database_url, connect_args={"timeout": 30})
        self._recoveries, self._sampler = Recoveries(self._engine), Sampler(self._engine)
        self._records: list[Record] = []
        self._asked: dict[str, _Asked] = {}
        self._faults: Counter[str] = Counter()
        self._violations: list[str] = []

    def carry_out(self, bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
        undisturbed = [self._undisturbed(body) for body in bodies]
        self._recoveries.start()
        self._sampler.start()
        fault: threading.Thread | None = None
        until, due = time.monotonic() + self._options.minutes * 60, time.monotonic() + EVERY_S / 2
        while time.monotonic() < until:
            self._look()
            if len(self._open()) < OPEN_JOBS and not self._enough():
                self._submit(self._random.choice(undisturbed))
            if time.monotonic() >= due and (fault is None or not fault.is_alive()):
                due = time.monotonic() + EVERY_S
                fault = threading.Thread(target=self._strike, args=(self._random.choice(KINDS),), daemon=True)
                fault.start()
            time.sleep(0.2)
        if fault is not None:
            fault.join()
        deadline = time.monotonic() + LIMIT_S
        while (self._open() or unfinished(self._engine)) and time.monotonic() < deadline:
            self._look()
            time.sleep(0.5)
        self._recoveries.stop()
        self._sampler.stop()
        objects = StoredBytes(self._stack.settings.data_dir / "objects", None)
        wait_until_collected(self._engine, objects)
        checked = check(self._engine, objects, self._records, self._sampler, echoes=False)
        for code, count in checked.errors.items():
            self._violations.append(f"failed: {count} jobs ended with {code}")
        self._engine.dispose()
        found = self._recoveries.found
        killed = [each.seconds for each in found if each.kind.startswith("kill")]
        return {
            "database": "sqlite",
            "pipeline": self._options.pipeline,
            "seed": self._options.seed,
            "minutes": self._options.minutes,
            "lease_s": LEASE_S,
            "jobs": len(self._records),
            "faults": dict(sorted(self._faults.items())),
            "lost": checked.lost,
            "doubled": checked.doubled,
            "stuck": checked.stuck,
            "wasted_runs": checked.wasted_runs,
            "recovery_p50_s": percentile(killed, 0.5),
            "recovery_p99_s": percentile(killed, 0.99),
            "recovery": {kind: sorted(round(e.seconds, 2) for e in found if e.kind == kind) for kind in KINDS},
            "cancel_p99_s": None,
            "outcomes": dict(checked.outcomes),
            "attempt_errors": dict(checked.attempt_errors),
            "violations": [*self._violations, *checked.violations],
        }

    def _undisturbed(self, body: dict[str, Any]) -> _Asked:
        key = f"undisturbed-{len(self._records)}"
        job = self._client.wait(self._client.submit(body, idempotency_key=key).id, timeout=LIMIT_S)
        record = Record(key, body, "", False, job_id=job.id)
        record.final = {"status": job.status.value}
        self._records.append(record)
        if job.result is None:
            raise RuntimeError(f"the undisturbed job is {job.status}: {job.error}")
        return _Asked(body, job.result, {each.name: self._artifact(job, each.name) for each in job.artifacts})

    def _enough(self) -> bool:
        return self._options.jobs is not None and len(self._records) >= self._options.jobs

    def _open(self) -> list[Record]:
        return [record for record in self._records if record.final is None]

    def _submit(self, asked: _Asked) -> None:
        record = Record(f"{self._options.seed}-{len(self._records)}", asked.body, "", False)
        self._records.append(record)
        self._asked[record.key] = asked

    def _look(self) -> None:
        """Submit what has no answer yet, with its first key; look at what is open."""
        for record in self._open():
            with suppress(OmniJobsError):
                if record.job_id is None:
                    record.job_id = self._client.submit(record.body, idempotency_key=record.key).id
                    continue
                job = self._client.get(record.job_id)
                if not job.status.is_final:
                    continue
                record.final = {"status": job.status.value}
                if job.status.value == "completed" and not self._is_as_undisturbed(job, self._asked[record.key]):
                    self._violations.append(f"{job.id}: another result than the undisturbed one: {job.result}")

    def _is_as_undisturbed(self, job: JobView, asked: _Asked) -> bool:
        """The same result and the same artifacts, to the rounding that another batch brings."""
        if (job.result, {each.name for each in job.artifacts}) != (asked.result, set(asked.artifacts)):
            return False
        return all(
            differ_by(self._artifact(job, name), artifact) <= self._subject.rounding
            for name, artifact in asked.artifacts.items()
        )

    def _artifact(self, job: JobView, name: str) -> bytes:
        return self._client.artifact(job.id, name)

    def _strike(self, kind: str) -> None:
        names = {"kill_api": ["api"], "kill_rescuer": ["rescuer"]}.get(kind) or self._workers_for(kind)
        name = self._random.choice(names) if names else None
        pid = None if name is None else self._pid(name)
        if pid is None:
            return
        held, at = self._recoveries.held_by(pid), time.time()
        self._console.print(f"{kind} of {name}, which holds {len(held)}; {len(self._records)} jobs so far")
        with suppress(ProcessLookupError):
            if kind.startswith("stop_worker"):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(LEASE_S + 3 if "past" in kind else 2)
                os.kill(pid, signal.SIGCONT)
            elif kind == "kill_engine":
                os.kill(self._random.choice(_engines_of(pid)), signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
        self._faults[kind] += 1
        self._recoveries.follow(kind, held, at)

    def _workers_for(self, kind: str) -> list[str]:
        """The workers that a fault of this kind can strike: those with an engine's process, or all."""
        workers = {name: self._pid(name) for name in self._workers}
        return [
            name for name, pid in workers.items() if pid is not None and (kind != "kill_engine" or _engines_of(pid))
        ]

    def _pid(self, name: str) -> int | None:
        return next(child.pid for child in self._stack.children() if child.name == name)


def _engines_of(worker: int) -> list[int]:
    """The processes under a worker's."""
    return [each for each in processes_of([worker]) if each != worker]


def differ_by(one: bytes, other: bytes) -> float:
    """The largest difference of two 16-bit WAVs' samples or two pictures' colours; 65,536 if their sizes differ.

    Of two videos: the mean difference of the colours of a frame, the largest.
    """
    found = [_values_of(data) for data in (one, other)]
    if found[0].shape != found[1].shape:
        return 1 << 16
    apart = np.abs(found[0] - found[1])
    return float((apart.mean(axis=(1, 2, 3)) if apart.ndim == 4 else apart).max(initial=0))


def _values_of(artifact: bytes) -> NDArray[np.int32]:
    """The samples [S] of a WAV, the colours [H, W, 3] of a picture or [F, H, W, 3] of a video."""
    if artifact.startswith(b"RIFF"):
        return np.frombuffer(artifact[WAV_HEADER_BYTES:], "<i2").astype(np.int32)
    if artifact[4:8] == b"ftyp":
        with av.open(io.BytesIO(artifact)) as video:
            frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
        return np.stack(frames).astype(np.int32)
    with Image.open(io.BytesIO(artifact)) as picture:
        return np.asarray(picture.convert("RGB"), dtype=np.int32)


def _tiny_qwen2_5_omni(directory: Path) -> dict[str, Path]:
    from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint

    return {"qwen2_5_omni": build_tiny_checkpoint(directory / "checkpoint", seed=0)}


def _tiny_qwen3_omni(directory: Path) -> dict[str, Path]:
    from workers.models.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint

    return {"qwen3_omni": build_tiny_checkpoint(directory / "checkpoint", seed=0)}


def _omni_bodies(pipeline: str) -> list[dict[str, Any]]:
    """Greedy and seeded: the same every time."""
    found = []
    for number, (text, modalities) in enumerate(
        (("Tell me about the sea.", ["text"]), ("讲个故事 📖", ["text", "audio"]), ("Hello!", ["text", "audio"]))
    ):
        stages: dict[str, Any] = {"thinker": {"temperature": 0, "max_tokens": 60 + 40 * number, "ignore_eos": True}}
        if "audio" in modalities:
            stages["talker"] = {"temperature": 0, "top_k": 0, "max_tokens": 60, "ignore_eos": True}
        body = {
            "model": pipeline,
            "messages": [{"role": "user", "content": text}],
            "modalities": modalities,
            "seed": number,
            "stages": stages,
        }
        found.append(body)
    return found


def _smollm2(directory: Path) -> dict[str, Path]:
    from demo.checkpoints import smollm2_checkpoint

    return {"voice.think": smollm2_checkpoint(Console())}


def _voice_bodies(directory: Path) -> list[dict[str, Any]]:
    """Spoken questions, answered with seeds by text, speech, or both."""
    from tests.spoken import hibari, wav

    found = []
    for number, (question, modalities) in enumerate(
        (
            ("What should I do when I cannot sleep at night?", ["text", "audio"]),
            ("Why is the sky blue?", ["audio"]),
            ("How do I bake bread?", ["text"]),
        )
    ):
        sound = directory / f"question-{number}.wav"
        sound.write_bytes(wav(hibari()(question, seed=number), 24_000))
        message = user_message(audio=[sound])
        found.append({"model": "voice", "messages": [message], "modalities": modalities, "seed": number})
    return found


def _tiny_qwen_image(directory: Path) -> dict[str, Path]:
    from workers.models.qwen_image.tiny_checkpoint import build_tiny_checkpoint

    return {"qwen_image": build_tiny_checkpoint(directory / "checkpoint", seed=0)}


def _qwen_image_bodies(directory: Path) -> list[dict[str, Any]]:
    """Pictures of many steps, so that most faults strike while one is denoised."""
    found = []
    for number, (text, size, steps) in enumerate(
        (("A lighthouse at dusk", 256, 200), ("雨后的街道", 320, 160), ("Bread on a table", 448, 120))
    ):
        body = {
            "model": "qwen_image",
            "messages": [{"role": "user", "content": text}],
            "modalities": ["image"],
            "seed": number,
            "stages": {"denoise": {"width": size, "height": 256, "steps": steps}},
        }
        found.append(body)
    return found


def _tiny_wan(directory: Path) -> dict[str, Path]:
    from workers.models.wan.tiny_checkpoint import build_tiny_checkpoint

    return {"wan": build_tiny_checkpoint(directory / "checkpoint", seed=0)}


def _wan_bodies(directory: Path) -> list[dict[str, Any]]:
    """Videos of many steps, so that most faults strike while one is denoised."""
    found = []
    for number, (text, frames, steps) in enumerate(
        (("A lighthouse at dusk", 21, 120), ("雨后的街道", 13, 160), ("Bread on a table", 33, 80))
    ):
        body = {
            "model": "wan",
            "messages": [{"role": "user", "content": text}],
            "modalities": ["video"],
            "seed": number,
            "stages": {"denoise": {"width": 128, "height": 96, "num_frames": frames, "steps": steps}},
        }
        found.append(body)
    return found


PIPELINES = {
    # code2wav's samples differ by 1e-4 between batches.
    "qwen2_5_omni": Subject(_tiny_qwen2_5_omni, lambda _: _omni_bodies("qwen2_5_omni"), rounding=4),
    "qwen3_omni": Subject(_tiny_qwen3_omni, lambda _: _omni_bodies("qwen3_omni"), rounding=4),
    # A row's last bits differ with its company, and a colour that lies between two values with them. Seconds of
    # denoising under faults, so that most killed attempts leave a snapshot.
    "qwen_image": Subject(
        _tiny_qwen_image, _qwen_image_bodies, rounding=1, engines={"denoise": {"snapshot_every_s": 0.5}}
    ),
    "voice": Subject(_smollm2, _voice_bodies, rounding=0),
    # In company frames differed by 3.0 at most.
    "wan": Subject(_tiny_wan, _wan_bodies, rounding=8, engines={"denoise": {"snapshot_every_s": 0.5}}),
}
