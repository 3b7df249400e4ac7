"""The main job: the embedded stack against ``OmniLLM`` on the same prompts, in one run.

    python -m benchmarks.main_job --json FILE [--model PATH] [--jobs 16] [--runs 5] [--quick]

Measured from the first submit to the last WAV fetched, over HTTP; start-up per worker
and the memory of the whole stack (PSS: shared pages counted once) beside it. Without
--model a tiny checkpoint with random weights is built, so that what is measured is
the platform and not the model; --quick measures the pipeline without a model.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.progress import track

from benchmarks.figures import Figure, figure, report
from benchmarks.http_load import post_all
from omni_jobs.client import Client
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
from workers.offline import OmniLLM


@dataclass(frozen=True)
class Work:
    """The jobs of one pipeline."""

    pipeline: str
    modalities: Sequence[str]
    stages: Mapping[str, Mapping[str, Any]]
    artifacts: Sequence[str]

    def requests(self, count: int) -> list[dict[str, Any]]:
        """Of different lengths, each the same work whenever it is done."""
        return [
            {
                "messages": [{"role": "user", "content": f"Job {n}. " + "Tell me more. " * (n % 5)}],
                "modalities": list(self.modalities),
                "seed": n,
                "stages": self.stages,
            }
            for n in range(count)
        ]


GREEDY = {"temperature": 0, "max_tokens": 32}
SPEECH = Work(
    pipeline="qwen2_5_omni",
    modalities=("text", "audio"),
    stages={"thinker": {**GREEDY, "ignore_eos": True}, "talker": {**GREEDY, "max_tokens": 64}},
    artifacts=("audio.wav",),
)
ECHO = Work(pipeline="echo", modalities=("text",), stages={}, artifacts=())


def main() -> None:
    arguments = _arguments()
    work = ECHO if arguments.quick else SPEECH
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory:
        settings = Settings(data_dir=Path(directory) / "data")
        if work is SPEECH:
            model = arguments.model or build_tiny_checkpoint(Path(directory) / "checkpoint")
            settings = settings.model_copy(update={"models": {work.pipeline: model}})
        with EmbeddedStack(settings, pipelines=[work.pipeline]) as stack, Client(stack.url) as client:
            figures = [
                *_start_up(stack),
                figure("memory of the stack, idle", "MiB", [_memory_mib(stack)]),
                *_compare(work, client, stack.settings, arguments.jobs, arguments.runs),
                figure("memory of the stack, after the jobs", "MiB", [_memory_mib(stack)]),
            ]
    report(figures, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--model", type=Path, help="a Qwen2.5-Omni checkpoint directory")
    parser.add_argument("--quick", action="store_true", help="the echo pipeline: seconds, and no model")
    parser.add_argument("--jobs", type=int, default=16, help="jobs at once (default 16)")
    parser.add_argument("--runs", type=int, default=5, help="times each side, alternating (default 5)")
    return parser.parse_args()


def _start_up(stack: EmbeddedStack) -> list[Figure]:
    return [figure(f"start-up of {child.name}", "s", [child.start_s or 0.0]) for child in stack.children()]


def _compare(work: Work, client: Client, settings: Settings, jobs: int, runs: int) -> list[Figure]:
    one, many = work.requests(1), work.requests(jobs)
    with OmniLLM(work.pipeline, settings=settings) as llm:
        times: dict[str, list[float]] = {"stack 1": [], "offline 1": [], "stack n": [], "offline n": []}
        for _ in track(range(runs + 1), description="alternating"):
            times["stack 1"].append(timed(lambda: through_stack(client, work, one)))
            times["offline 1"].append(timed(lambda: offline(llm, one)))
            times["stack n"].append(timed(lambda: through_stack(client, work, many)))
            times["offline n"].append(timed(lambda: offline(llm, many)))
    warm = {name: found[1:] for name, found in times.items()}  # the first round warms both
    return [
        figure("1 job, stack", "s", warm["stack 1"]),
        figure("1 job, OmniLLM", "s", warm["offline 1"]),
        figure("1 job, OmniLLM's time / the stack's", "×", ratios(warm["offline 1"], warm["stack 1"])),
        figure(f"{jobs} jobs, stack", "s", warm["stack n"]),
        figure(f"{jobs} jobs, OmniLLM", "s", warm["offline n"]),
        figure(f"{jobs} jobs, OmniLLM's time / the stack's", "×", ratios(warm["offline n"], warm["stack n"])),
    ]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def through_stack(client: Client, work: Work, requests: Sequence[dict[str, Any]], *, singly: bool = False) -> None:
    """Submit all in one call, as ``OmniLLM`` gets them; wait for the end of each, and fetch what it made.

    ``singly``: each in a call of its own, all at once, as so many users would.
    """
    bodies = [json.dumps({"model": work.pipeline, **request}).encode() for request in requests]
    for job_id in _submit_singly(client, bodies) if singly else _submit_bulk(client, bodies):
        done = client.wait(job_id)
        if done.status is not JobState.COMPLETED:
            raise SystemExit(f"job {done.id} is {done.status.value}: {done.error}")
        for name in work.artifacts:
            client.artifact(done, name)


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


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _memory_mib(stack: EmbeddedStack) -> float:
    """PSS of the children and all that share their sessions."""
    sessions = {child.pid for child in stack.children()}
    total_kib = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) in sessions:
                lines = (entry / "smaps_rollup").read_text(encoding="ascii").splitlines()
                total_kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (ProcessLookupError, FileNotFoundError):
            continue  # it ended meanwhile
    return total_kib / 1024


if __name__ == "__main__":
    main()
