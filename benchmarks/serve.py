"""vLLM's own load tool before ``/v1/chat/completions``: the platform's, and that of vLLM's own server.

    OMP_NUM_THREADS=1 python -m benchmarks.serve --json FILE [--requests 64] [--runs 5] [--model PATH] [--quick]

``vllm bench serve``, unchanged, sends chat completions of about 60 tokens at once, streamed, and each gets 64 new
tokens. Both servers have the same model and the same engine arguments, and wait while the other has its turn. The
platform's way goes through HTTP, SQL, the queue and a worker, and back through SQL. Without --model
SmolLM2-135M-Instruct is fetched once; --quick uses a tiny model with random weights.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

from benchmarks.chat import NEW_TOKENS, WORDS, chat_arguments, chat_checkpoint
from benchmarks.engine import chat_engine_args
from benchmarks.figures import Figure, figure, report
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests.services.vllm_server import KEY, MODEL, VllmServer

_LOAD = "from vllm.benchmarks import serve; from vllm.utils.argparse_utils import FlexibleArgumentParser as Parser; "
_LOAD += "parser = Parser(); serve.add_cli_args(parser); serve.main(parser.parse_args())"
# The command ``vllm bench serve`` asks for the version of a package named vllm, which the CPU build is not.


class Side(NamedTuple):
    """A server under load. ``url`` is without ``/v1``."""

    url: str
    model: str


def main() -> None:
    arguments = chat_arguments(__doc__, "requests", 64)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for both sides
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as name:
        directory = Path(name)
        model = chat_checkpoint(arguments, directory)
        settings = Settings(data_dir=directory / "data", models={"chat": model})
        server = VllmServer(model, directory / "log", **_engine_options(settings))
        try:
            with Console().status("starting vLLM's server"):
                server.start()
                server.wait()
            with EmbeddedStack(settings, pipelines=["chat"]) as stack:
                ours = Side(stack.url, "chat")
                theirs = Side(server.url.removesuffix("/v1"), MODEL)
                turns = _turns(ours, theirs, model, directory, arguments)
        finally:
            server.kill()
    report(_figures(turns), arguments.json)


def _engine_options(settings: Settings) -> dict[str, Any]:
    """Return what makes vLLM's server have the engine arguments of the pipeline's stage on a CPU."""
    engine = chat_engine_args(settings)
    options = [
        "--max-num-batched-tokens", str(engine["max_num_batched_tokens"]),
        "--kv-cache-memory-bytes", str(engine["kv_cache_memory_bytes"]), "--dtype", str(engine["dtype"]),
    ]  # fmt: skip
    return {"seats": engine["max_num_seqs"], "options": options}


def _turns(
    ours: Side, theirs: Side, model: Path, directory: Path, arguments: argparse.Namespace
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return what the load tool found of both sides in each turn but the first, which warms them."""
    turns = []
    for turn in track(range(arguments.runs + 1), description="alternating"):
        found = tuple(_load(side, model, directory, arguments.requests, turn) for side in (ours, theirs))
        if turn:
            turns.append((found[0], found[1]))
    return turns


def _load(side: Side, model: Path, directory: Path, requests: int, turn: int) -> dict[str, Any]:
    """Run the load tool before one server, and return its result. Raises SystemExit if a request failed."""
    result, prompts = directory / "result.json", directory / "prompts.json"
    texts = [f"Day {turn}.{number}. {WORDS}Tell it." for number in range(requests)]
    talks = [{"conversations": [{"value": text}, {"value": WORDS}]} for text in texts]
    prompts.write_text(json.dumps(talks), encoding="utf-8")
    command = [
        sys.executable, "-c", _LOAD, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
        "--base-url", side.url, "--model", str(model), "--served-model-name", side.model,
        "--header", f"Authorization=Bearer {KEY}", "--dataset-name", "sharegpt", "--dataset-path", str(prompts),
        "--sharegpt-output-len", str(NEW_TOKENS), "--disable-shuffle",
        "--num-prompts", str(requests), "--ignore-eos", "--temperature", "0",
        "--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-result", "--result-filename", str(result),
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load tool failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if found["completed"] != requests:
        raise SystemExit(f"{requests - found['completed']} of {requests} requests failed at {side.url}:\n{done.stdout}")
    return found


def _figures(turns: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[Figure]:
    rate, first = "output_throughput", "median_ttft_ms"
    return [
        figure("the platform", "tokens/s", [ours[rate] for ours, _ in turns]),
        figure("vLLM's server", "tokens/s", [theirs[rate] for _, theirs in turns]),
        figure(
            "the platform / vLLM's server", "×", [ours[rate] / theirs[rate] for ours, theirs in turns], at_least=0.9
        ),
        figure("the platform, to the first chunk", "ms", [ours[first] for ours, _ in turns]),
        figure("vLLM's server, to the first chunk", "ms", [theirs[first] for _, theirs in turns]),
    ]


if __name__ == "__main__":
    main()
