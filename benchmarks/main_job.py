"""The main job: the embedded stack against ``OmniLLM`` on the same requests, in one run.

    python -m benchmarks.main_job --json FILE [--pipeline voice] [--model PATH] [--jobs 16] [--runs 5] [--quick]

Measured from the first submit to the last artifact fetched, over HTTP; start-up and memory of each process beside it
(PSS: shared pages counted once), and the seconds of each stage from its start to its end, alone and in company.

qwen2_5_omni   written prompts; without --model a tiny checkpoint with random weights is built, so that what is measured
               is the platform and not the model
voice          spoken questions and spoken answers with real weights; without --model SmolLM2-135M-Instruct is fetched
               once
qwen_image     pictures of 64 x 64 pixels in 20 steps; without --model a tiny checkpoint with random weights is built

--quick measures the pipeline echo, which needs no model.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import track

from benchmarks.figures import Figure, figure, report
from benchmarks.http_load import post_all
from demo.checkpoints import smollm2_checkpoint
from omni_jobs.client import Client, user_message
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
from workers.models.qwen_image.tiny_checkpoint import build_tiny_checkpoint as build_tiny_qwen_image
from workers.offline import OmniLLM


def _written(number: int, directory: Path) -> dict[str, Any]:
    """Return a written message; its length depends on the number."""
    return {"role": "user", "content": f"Job {number}. " + "Tell me more. " * (number % 5)}


def _spoken(number: int, directory: Path) -> dict[str, Any]:
    """Return a spoken message: one of the thirty sentences."""
    from tests.oracles.sentences import SENTENCES
    from tests.spoken import hibari, wav

    sound = directory / f"question-{number % len(SENTENCES)}.wav"
    if not sound.exists():
        sound.write_bytes(wav(hibari()(SENTENCES[number % len(SENTENCES)], seed=number), 24_000))
    return user_message(audio=[sound])


@dataclass(frozen=True)
class Work:
    """The jobs of one pipeline. ``model``: the key of its checkpoint among the settings' ``models``."""

    pipeline: str
    modalities: Sequence[str]
    artifacts: Sequence[str]
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model: str = ""
    checkpoint: Callable[[Path], Path] | None = None  # makes it, or fetches it
    message: Callable[[int, Path], dict[str, Any]] = _written

    def requests(self, count: int, directory: Path = Path(".")) -> list[dict[str, Any]]:
        """Of different lengths, each the same work whenever it is done; sounds are written to the directory."""
        return [
            {
                "messages": [self.message(number, directory)],
                "modalities": list(self.modalities),
                "seed": number,
                "stages": self.stages,
            }
            for number in range(count)
        ]


GREEDY = {"temperature": 0, "max_tokens": 32}
SPEECH = Work(
    pipeline="qwen2_5_omni",
    modalities=("text", "audio"),
    artifacts=("audio.wav",),
    stages={"thinker": {**GREEDY, "ignore_eos": True}, "talker": {**GREEDY, "max_tokens": 64}},
    model="qwen2_5_omni",
    checkpoint=lambda directory: build_tiny_checkpoint(directory / "checkpoint"),
)
VOICE = Work(
    pipeline="voice",
    modalities=("text", "audio"),
    artifacts=("audio.wav",),
    stages={"think": GREEDY},
    model="voice.think",
    checkpoint=lambda directory: smollm2_checkpoint(Console()),
    message=_spoken,
)
PICTURE = Work(
    pipeline="qwen_image",
    modalities=("image",),
    artifacts=("image.png",),
    stages={"denoise": {"width": 64, "height": 64, "steps": 20}},
    model="qwen_image",
    checkpoint=lambda directory: build_tiny_qwen_image(directory / "checkpoint"),
)
ECHO = Work(pipeline="echo", modalities=("text",), artifacts=())
WORKS = {work.pipeline: work for work in (SPEECH, VOICE, PICTURE)}


def main() -> None:
    arguments = _arguments()
    work = ECHO if arguments.quick else WORKS[arguments.pipeline]
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as name:
        directory = Path(name)
        settings = Settings(data_dir=directory / "data")
        if work.checkpoint is not None:
            model = arguments.model or work.checkpoint(directory)
            settings = settings.model_copy(update={"models": {work.model: model}})
        with EmbeddedStack(settings, pipelines=[work.pipeline]) as stack, Client(stack.url) as client:
            figures = [
                *_start_up(stack),
                *_memory(stack, "idle"),
                *_compare(work, client, stack.settings, arguments.jobs, arguments.runs, directory),
                *_memory(stack, "after the jobs"),
            ]
    report(figures, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--pipeline", choices=sorted(WORKS), default=SPEECH.pipeline, help="default: %(default)s")
    parser.add_argument("--model", type=Path, help="the checkpoint directory of the pipeline's language model")
    parser.add_argument("--quick", action="store_true", help="the echo pipeline: seconds, and no model")
    parser.add_argument("--jobs", type=int, default=16, help="jobs at once (default 16)")
    parser.add_argument("--runs", type=int, default=5, help="times each side, alternating (default 5)")
    return parser.parse_args()


def _start_up(stack: EmbeddedStack) -> list[Figure]:
    return [figure(f"start-up of {child.name}", "s", [child.start_s or 0.0]) for child in stack.children()]


def _compare(work: Work, client: Client, settings: Settings, jobs: int, runs: int, directory: Path) -> list[Figure]:
    found = []
    with OmniLLM(work.pipeline, settings=settings) as llm:
        for count in (1, jobs):
            requests = work.requests(count, directory)
            stack: list[float] = []
            bare: list[float] = []
            stages: dict[str, list[float]] = {}
            for turn in track(range(runs + 1), description=f"{count} at once, alternating"):
                begin = time.perf_counter()
                done = through_stack(client, work, requests)
                stack.append(time.perf_counter() - begin)
                bare.append(timed(partial(offline, llm, requests)))
                if turn:  # the first round warms both
                    for stage, seconds in _stage_seconds(done).items():
                        stages.setdefault(stage, []).append(seconds)
            name = f"{count} job" if count == 1 else f"{count} jobs"
            found += [
                figure(f"{name}, stack", "s", stack[1:]),
                figure(f"{name}, OmniLLM", "s", bare[1:]),
                figure(f"{name}, OmniLLM's time / the stack's", "×", ratios(bare[1:], stack[1:])),
                *(figure(f"{name}, stage {stage}", "s", seconds) for stage, seconds in stages.items()),
            ]
    return found


def _stage_seconds(jobs: Sequence[JobView]) -> dict[str, float]:
    """Return the seconds from the first start of each stage's runs to the last end, in the order of the stages."""
    spans: dict[str, list[tuple[datetime, datetime]]] = {}
    for job in jobs:
        for run in job.stages:
            if run.started_at is not None and run.finished_at is not None:
                spans.setdefault(run.name, []).append((run.started_at, run.finished_at))
    return {
        stage: (max(end for _, end in found) - min(start for start, _ in found)).total_seconds()
        for stage, found in spans.items()
    }


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def through_stack(
    client: Client, work: Work, requests: Sequence[dict[str, Any]], *, singly: bool = False
) -> list[JobView]:
    """Submit all in one call, as ``OmniLLM`` gets them; wait for the end of each, fetch what it made, and return it.

    ``singly``: submit each in a call of its own, all at once, as one user each would.
    """
    bodies = [json.dumps({"model": work.pipeline, **request}).encode() for request in requests]
    jobs = []
    for job_id in _submit_singly(client, bodies) if singly else _submit_bulk(client, bodies):
        done = client.wait(job_id)
        jobs.append(done)
        if done.status is not JobState.COMPLETED:
            raise SystemExit(f"job {done.id} is {done.status.value}: {done.error}")
        for name in work.artifacts:
            client.artifact(done, name)
    return jobs


def _submit_bulk(client: Client, bodies: Sequence[bytes]) -> list[str]:
    found = []
    for answer in client.submit_bulk(bodies):
        if answer.id is None:
            raise SystemExit(f"line {answer.line} was refused: {answer.error}")
        found.append(answer.id)
    return found


def _submit_singly(client: Client, bodies: Sequence[bytes]) -> list[str]:
    where = urlsplit(client.base_url)
    answers = post_all(where.hostname or "", where.port or 0, "/v1/jobs", bodies, clients=len(bodies))
    return [json.loads(told)["id"] for told in answers.bodies]


def offline(llm: OmniLLM, requests: Sequence[dict[str, Any]]) -> None:
    for output in llm.generate(requests):
        if isinstance(output, Exception):
            raise output


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _memory(stack: EmbeddedStack, when: str) -> list[Figure]:
    """The PSS of each child with all that share its session, and of all of them."""
    mib = {child.name: _memory_mib(child.pid) for child in stack.children() if child.pid is not None}
    return [
        *(figure(f"memory of {name}, {when}", "MiB", [value]) for name, value in mib.items()),
        figure(f"memory of the stack, {when}", "MiB", [sum(mib.values())]),
    ]


def _memory_mib(session: int) -> float:
    total_kib = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) == session:
                lines = (entry / "smaps_rollup").read_text(encoding="ascii").splitlines()
                total_kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (ProcessLookupError, FileNotFoundError):
            continue  # it ended meanwhile
    return total_kib / 1024


if __name__ == "__main__":
    main()
