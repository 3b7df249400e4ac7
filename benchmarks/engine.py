"""The platform against the bare engine: chat jobs through HTTP, SQL, queue, worker and back, and ``LLM.generate``.

    OMP_NUM_THREADS=1 python -m benchmarks.engine --json FILE [--jobs 256] [--runs 5] [--model PATH] [--quick]

The same prompts of about 60 tokens, 64 new tokens each, greedy. Ours from the first submit to the
last result fetched, workers warm; vLLM's own LLM in this process, with the same engine arguments.
Both sides take turns. Without --model SmolLM2-135M-Instruct is fetched once; --quick uses a tiny
model with random weights.
"""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.progress import track

from benchmarks.chat import NEW_TOKENS, WORDS, chat_arguments, chat_checkpoint
from benchmarks.figures import Figure, figure, report
from benchmarks.http_load import post_all
from omni_jobs.client import Client
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.prompts.renderers import load_renderer
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from workers.runners.ar.ar_runner import engine_args
from workers.runners.ar.component import ArComponent
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.stage import Stage


def main() -> None:
    arguments = chat_arguments(__doc__, "jobs", 256)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for both sides
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory:
        model = chat_checkpoint(arguments, Path(directory))
        bodies = [_body(number) for number in range(arguments.jobs)]
        settings = Settings(data_dir=Path(directory) / "data", models={"chat": model})
        bare = BareEngine(settings, bodies)
        with EmbeddedStack(settings, pipelines=["chat"]) as stack, Client(stack.url) as client:
            times: dict[str, list[float]] = {"ours": [], "bare": []}
            for turn in track(range(arguments.runs + 1), description="alternating"):
                ours, theirs = _through_stack(client, stack.url, bodies), bare.generate()
                if turn:  # the first warms both
                    times["ours"].append(ours)
                    times["bare"].append(theirs)
    report(_figures(times, arguments.jobs), arguments.json)


def _figures(times: dict[str, list[float]], jobs: int) -> list[Figure]:
    tokens = jobs * NEW_TOKENS
    return [
        figure(f"{jobs} jobs, the platform", "tokens/s", [tokens / seconds for seconds in times["ours"]]),
        figure(f"{jobs} prompts, the bare engine", "tokens/s", [tokens / seconds for seconds in times["bare"]]),
        figure(
            "the platform / the bare engine",
            "×",
            [theirs / ours for ours, theirs in zip(times["ours"], times["bare"], strict=True)],
            at_least=0.95,
        ),
    ]


def _body(number: int) -> dict[str, Any]:
    content = f"Day {number}. {WORDS}Tell it."
    greedy = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    return {"model": "chat", "messages": [{"role": "user", "content": content}], "stages": {"llm": greedy}}


def _through_stack(client: Client, url: str, bodies: Sequence[dict[str, Any]]) -> float:
    where = urlsplit(url)
    begin = time.perf_counter()
    answers = post_all(
        where.hostname or "", where.port or 0, "/v1/jobs", [json.dumps(body).encode() for body in bodies], clients=32
    )
    for told in answers.bodies:
        job = client.wait(json.loads(told)["id"], timeout=1800)
        if job.status is not JobState.COMPLETED:
            raise SystemExit(f"{job.id} is {job.status.value}: {job.error}")
    return time.perf_counter() - begin


def chat_engine_args(settings: Settings) -> dict[str, Any]:
    """Return vLLM's engine arguments of the stage of the pipeline ``chat``."""
    pipeline = load_pipelines(settings.resolved_stage_configs)["chat"]
    stage = Stage(pipeline, pipeline.stage("llm"), settings.models["chat"])
    if stage.model is None:
        raise SystemExit("the pipeline has no model")
    return engine_args(OmniEngineArgs.for_stage(stage.config, stage.model, settings), stage.model, ArComponent())


class BareEngine:
    """vLLM's ``LLM`` in this process, as the stage config would start it."""

    def __init__(self, settings: Settings, bodies: Sequence[dict[str, Any]]) -> None:
        from vllm import LLM, SamplingParams

        self._llm: Any = LLM(**chat_engine_args(settings))
        renderer: Any = load_renderer("causal_lm", settings.models["chat"])
        self._prompts: Any = [{"prompt_token_ids": renderer.encode(body)} for body in bodies]
        self._sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)

    def generate(self) -> float:
        """Seconds."""
        begin = time.perf_counter()
        self._llm.generate(self._prompts, self._sampling, use_tqdm=False)
        return time.perf_counter() - begin


if __name__ == "__main__":
    main()
