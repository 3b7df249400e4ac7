"""A whole embedded stack with a day behind it and work before it, for scripts/screenshots.

What ran earlier is written by the steps of ``Jobs`` and then moved back in time. All else is real: the processes, the
speech and the pictures, the jobs that run and wait, what was killed.
"""

import base64
import io
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import insert, update

from omni_jobs.database.database import Database
from omni_jobs.database.seen_tables import AuditRow, StageSampleRow
from omni_jobs.database.tables import AttemptErrorRow, EventRow, JobRow, StageRunRow
from omni_jobs.errors import ModelError, OmniJobsError, OutOfMemory, PayloadTooLarge, TimeLimitExceeded, WorkerLost
from omni_jobs.jobs import COARSE_S, FINE_S, Completion, Failure, Jobs, NewWorker, new_job_id
from omni_jobs.metrics.stage_stats import Histogram, StageStats
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.drawn_scenes import lighthouse, town

PIPELINES = ("speech", "upscale", "echo_media", "echo")
TENANT_HEADER = "X-Tenant"
_WITHIN_S = 240.0
_HOUR = 3600.0
_TENANTS: Mapping[str, tuple[float, Mapping[str, int]]] = {
    "harbour-radio": (2.0, {"queued_jobs": 500, "stored_bytes": 20_000_000_000}),
    "lighthouse": (1.0, {"requests_per_minute": 600}),
    "museum": (1.0, {"running_jobs": 20, "media_bytes": 2_000_000_000}),
    "night-shift": (0.5, {}),
}
TEXTS = (
    "Tell me a story about a lighthouse that was afraid of the dark.",
    "写 一首 关于 灯塔 和 大海 的 诗 ， 四行 。",
    "灯台守 の 一日 を 三つ の 文 で 話して ください 。",
    "احكِ لي قصة عن منارة قديمة على شاطئ البحر البعيد.",
    "Der Nebel kam um drei Uhr; wer hat die Lampe gezündet?",
    "Какая погода будет завтра утром у старого маяка?",
    "등대지기에게 짧은 편지를 한 통 써 주세요, 오늘 밤에.",
    "🌊 🔦 A postcard from the cape, please, with a whale 🐋",
)
_STORY = (
    "A lighthouse, told five times: 灯塔在雾中 · 霧の中の灯台 · منارة في الضباب · маяк в тумане · 안개 속의 등대 🌊🔦"
)


@dataclass(frozen=True)
class LivelyStack:
    """``told``: the job with sound, a picture and a video, of which an attempt was lost; ``spoken``: one of speech."""

    stack: EmbeddedStack
    http: httpx2.Client
    told: str
    spoken: str


@contextmanager
def lively_stack(directory: Path) -> Iterator[LivelyStack]:
    """Run the stack, with its data in ``directory``, until the jobs that the pictures show have come so far."""
    settings = Settings(data_dir=directory, auth="proxy", tenant_header=TENANT_HEADER, pipelines=PIPELINES)
    with closing(Database(settings.resolved_database_url)) as db:
        db.migrate()
        _Past(db, settings).write()
    with EmbeddedStack(settings, pipelines=PIPELINES) as stack, httpx2.Client(base_url=stack.url, timeout=60) as http:
        _act(http, "/stages/echo/second/pause")  # early, because its worker learns it with a renewal
        told, spoken = _ended(http)
        _going_on(http)
        yield LivelyStack(stack, http, told, spoken)


# What runs


def _ended(http: httpx2.Client) -> tuple[str, str]:
    spoken = _submit(http, "speech", "The lighthouse keeper hummed to the fog, and the fog hummed back.", ["audio"])
    larger = _submit(http, "upscale", "", ["image"], pictures=[lighthouse().resize((96, 96))])
    delays = {"answer": 1.5, "sound": 2.5, "picture": 6, "video": 4}
    stages = {name: {"delay_s": delay} for name, delay in delays.items()}
    pictures = [town(3).resize((512, 512))]
    told = _submit(http, "echo_media", _STORY, ["text", "audio", "image", "video"], pictures=pictures, stages=stages,
                   metadata={"project": "cape", "take": "3"})  # fmt: skip
    _wait(http, told, lambda job: any(run["status"] == "running" and run["name"] == "picture" for run in job["stages"]))
    _act(http, "/plug/kills", process="worker echo_media.picture")
    for job in (spoken, larger, told):
        _wait(http, job, lambda job: job["status"] == "completed")
    return told, spoken


def _going_on(http: httpx2.Client) -> None:
    """Submit what runs and waits while the pictures are taken."""
    tenants = list(_TENANTS)
    for number in range(7):
        _submit(http, "echo", TEXTS[number], ["text"], tenant=tenants[number % 4])
    for number in range(7):  # one fewer than the slots, so that an answer of the page Try is heard at once
        _submit(http, "echo_media", TEXTS[number % len(TEXTS)], ["audio"], tenant=tenants[number % 4],
                stages={"sound": {"delay_s": 400 + 30 * number}})  # fmt: skip
    for _ in range(4):  # two more than the slots
        _submit(http, "echo_media", "Waves against the pier, from above", ["video"], tenant="museum",
                stages={"video": {"delay_s": 600}}, metadata={"project": "cape"})  # fmt: skip
    for number in range(3):
        _submit(http, "echo_media", "A lighthouse at dusk, in oil", ["image"], tenant=tenants[number], previews=True,
                pictures=[town(number + 5).resize((512, 512))], stages={"picture": {"delay_s": 150 + 90 * number, "steps": 30}})  # fmt: skip  # noqa: E501
    for number, text in enumerate(TEXTS):
        _submit(http, "echo_media", text * 3, ["text"], tenant=tenants[number % 4],
                stages={"answer": {"delay_s": 300 + 40 * number}}, metadata={"project": "letters"})  # fmt: skip


def _act(http: httpx2.Client, path: str, **fields: str) -> None:
    """Send a form of a page, as the page itself does."""
    files = {name: (None, value) for name, value in (fields or {"x": ""}).items()}
    answer = http.post(path, files=files, headers={"Sec-Fetch-Site": "same-origin"})
    if not answer.is_redirect:
        raise SystemExit(f"{path}: {answer.status_code}")


def _submit(
    http: httpx2.Client, model: str, text: str, modalities: Sequence[str], *, tenant: str = "lighthouse",
    pictures: Sequence[Any] = (), **more: object,
) -> str:  # fmt: skip
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [{"type": "image_url", "image_url": {"url": _data_url(picture)}} for picture in pictures]
    body = {"model": model, "messages": [{"role": "user", "content": content}], "modalities": modalities, "seed": 7}
    answer = http.post("/v1/jobs", json=body | more, headers={TENANT_HEADER: tenant})
    answer.raise_for_status()
    return str(answer.json()["id"])


def _data_url(picture: Any) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _wait(http: httpx2.Client, job_id: str, until: Any) -> None:
    end = time.monotonic() + _WITHIN_S
    while True:
        job = http.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        if until(job):
            return
        if job["status"] in ("failed", "cancelled", "expired") or time.monotonic() > end:
            raise SystemExit(f"{job_id} is {job['status']}: {job.get('error')}")
        time.sleep(0.2)


# What ran earlier


class _Past:
    """Writes the jobs of a day, tenants, keys, acts, and the samples of a day and an hour."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self._db, self._jobs, self._settings = db, Jobs(db), settings
        self._pipelines = load_pipelines(settings.resolved_stage_configs)
        self._pick = random.Random(36)

    def write(self) -> None:
        self._make_tenants()
        for pipeline in ("echo_media", "echo"):
            for stage in self._pipelines[pipeline].stages:
                self._jobs.register_worker(self._worker(pipeline, stage), 600.0)
        self._make_jobs()
        for pipeline in ("echo_media", "echo"):
            for stage in self._pipelines[pipeline].stages:
                self._jobs.retire_worker(f"{pipeline}.{stage}")
        self._make_samples()

    def _worker(self, pipeline: str, stage: str) -> NewWorker:
        name, config = f"{pipeline}.{stage}", self._pipelines[pipeline]
        return NewWorker(name, name, config.stage_id(stage), "vm", 4711, 64, config.version)

    def _make_tenants(self) -> None:
        tenants, keys = Tenants(self._db), ApiKeys(self._db)
        for name, (weight, limits) in _TENANTS.items():
            tenants.create(name, weight, limits)
            keys.create(name, ["submit", "read"], name="backend", expires_in_s=90 * 86_400.0)
        keys.create("harbour-radio", ["read"], name="wall display", expires_in_s=3 * 86_400.0)
        keys.create("museum", ["submit", "read", "admin"], name="操作员", expires_in_s=300 * 86_400.0)
        with self._db.begin() as tx:
            tx.execute(update(AuditRow).values(at=AuditRow.at - 5 * _HOUR))

    def _make_jobs(self) -> None:
        kinds: Sequence[tuple[str, str, int, OmniJobsError]] = (
            ("video", "video", 13, TimeLimitExceeded("the video took longer than 600 s", stage="video")),
            ("image", "picture", 9, ModelError("step 17 of 30 gave NaN at 512 x 512", stage="picture")),
            ("audio", "sound", 6, PayloadTooLarge("the sound has 812 MB, at most 512 MB are taken", stage="sound")),
            ("text", "answer", 4, ModelError("no tokenizer knows the language 'tlh'", stage="answer")),
            ("image", "picture", 3, OutOfMemory("CUDA out of memory: tried to allocate 2.50 GiB", stage="picture")),
        )
        for number in range(60):
            self._job(
                "echo_media", TEXTS[number % len(TEXTS)], "text", "answer", number, ago_s=23 * _HOUR - number * 1300
            )
        for modality, stage, count, error in kinds:
            for number in range(count):
                ago_s = abs(self._pick.gauss(0.5, 0.3)) % 1 * 55 * 60 + 120
                self._job("echo_media", TEXTS[number % len(TEXTS)], modality, stage, number, ago_s=ago_s, error=error)
        lost = WorkerLost("worker video@vm was lost while it ran this", stage="video")
        for number in range(2):
            self._job(
                "echo_media", "A storm, 4096 frames", "video", "video", number, ago_s=2400 + 700 * number, error=lost
            )

    def _job(
        self, pipeline: str, text: str, modality: str, stage: str, number: int, *, ago_s: float,
        error: OmniJobsError | None = None,
    ) -> None:  # fmt: skip
        """Make a job that was submitted ``ago_s`` seconds ago and has ended; one with a retryable error goes on."""
        body = {"model": pipeline, "messages": [{"role": "user", "content": text}], "modalities": [modality]}
        job_id = f"job-{int((time.time() - ago_s) * 1000):012x}{new_job_id()[16:]}"
        tenant = list(_TENANTS)[number % len(_TENANTS)]
        new = replace(
            admit(parse(body, self._settings), self._pipelines, self._settings), job_id=job_id, tenant=tenant,
            metadata={"project": ("cape", "letters")[number % 2]},
        )  # fmt: skip
        [made] = self._jobs.submit_all([new])
        if isinstance(made, Exception):
            raise made
        worker, ran_s = f"{pipeline}.{stage}", self._pick.uniform(2, 40)
        while True:
            [claim] = self._jobs.claim(worker, 1).claims
            if error is None:
                self._jobs.report([Completion(claim.stage_run_id, claim.attempt, worker, inline_payload=b"x",
                                              payload_bytes=344, result={"text": text})])  # fmt: skip
            else:
                self._jobs.report([Failure(claim.stage_run_id, claim.attempt, worker, error)])
            if not isinstance(error, WorkerLost) or self._jobs.get(job_id).status.is_final:
                break
        with self._db.begin() as tx:
            for row, of_job in ((JobRow, JobRow.id == job_id), (StageRunRow, StageRunRow.job_id == job_id)):
                tx.execute(update(row).where(of_job).values(
                    started_at=row.started_at - ago_s + 1.5, finished_at=row.finished_at - ago_s + 1.5 + ran_s,
                ))  # fmt: skip
            tx.execute(update(JobRow).where(JobRow.id == job_id).values(created_at=JobRow.created_at - ago_s))
            tx.execute(
                update(StageRunRow).where(StageRunRow.job_id == job_id).values(queued_at=StageRunRow.queued_at - ago_s)
            )
            tx.execute(update(EventRow).where(EventRow.job_id == job_id).values(at=EventRow.at - ago_s))
            of_run = AttemptErrorRow.stage_run_id == claim.stage_run_id
            spread_s = 20 * (AttemptErrorRow.attempt - 4)
            tx.execute(update(AttemptErrorRow).where(of_run).values(at=AttemptErrorRow.at - ago_s + spread_s))

    def _make_samples(self) -> None:
        stages = [(name, stage) for name in PIPELINES for stage in self._pipelines[name].stages]
        now = int(time.time())
        rows = [
            self._sample(pipeline, stage, number, step_s, at)
            for step_s, span_s in ((FINE_S, 3600), (COARSE_S, 86_400))
            for number, (pipeline, stage) in enumerate(stages)
            for at in range(now - now % step_s - span_s, now - step_s, step_s)
        ]
        with self._db.begin() as tx:
            tx.execute(insert(StageSampleRow), rows)

    def _sample(self, pipeline: str, stage: str, number: int, step_s: int, at: int) -> Mapping[str, Any]:
        """What a stage did and how it stood: more by day than by night, and a little by chance."""
        day = 0.55 - 0.45 * math.cos((at % 86_400) / 86_400 * 2 * math.pi - 0.6 * number)
        rate = (18, 18, 5, 60, 24, 12, 3, 80, 80)[number] * day * self._pick.uniform(0.85, 1.15)  # a minute
        run_s = (1.8, 0.9, 6.0, 0.4, 2.0, 5.0, 22.0, 0.1, 0.1)[number] * self._pick.uniform(0.8, 1.3)
        ends = max(0, round(rate * step_s / 60 + self._pick.uniform(-0.5, 0.5)))
        failed = 1 if at < time.time() - 180 and self._pick.random() < min(0.25, 0.015 * ends) else 0
        running = rate * run_s / 60
        queued = max(0.0, (day - 0.6) * running * self._pick.uniform(2, 5))
        seconds = {
            "queue": _histogram(ends, 0.05 + queued / max(rate / 60, 0.01)), "load": _histogram(ends, 0.004),
            "run": _histogram(ends, run_s), "store": _histogram(ends, 0.012),
        }  # fmt: skip
        stats = StageStats(seconds, {"completed": ends - failed, "model_error": failed})
        return {
            "step_s": step_s, "pipeline": pipeline, "stage": stage, "at": at, "span_s": float(step_s), "slots": 8.0,
            "queued": queued, "running": running, "pending": 0.0, "workers": 1.0, "loading": 0.0,
            "stats": stats.to_json(),
        }  # fmt: skip


def _histogram(count: int, mean_s: float) -> Histogram:
    """``count`` values around a mean: most in its bucket, a few above."""
    bounds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
    place = next((place for place, bound in enumerate(bounds) if bound >= mean_s), len(bounds) - 2)
    above = count // 8
    counts = {str(bounds[place]): count - above, str(bounds[min(place + 1, len(bounds) - 1)]): above}
    return Histogram({bound: each for bound, each in counts.items() if each}, count * mean_s)
