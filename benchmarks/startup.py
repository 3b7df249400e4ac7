"""Start-up: the command, the API's import, and each worker of the speech pipeline, with vLLM's own part.

    python -m benchmarks.startup --json FILE [--model PATH] [--runs 5] [--quick]

vLLM's own: the time of ``LLM(…)`` in a process of its own with the thinker's engine arguments, its
imports included. Without --model a tiny checkpoint is built; --quick leaves the workers out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import track

from benchmarks.figures import Figure, figure, report
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack

COMMANDS = {
    "omni-jobs --help": (["-m", "omni_jobs.cli", "--help"], 0.5),
    "import of the API": (["-c", "import omni_jobs.web.app"], 1.0),
    "import of the command": (["-c", "import omni_jobs.cli"], 1.0),
    "import of nothing": (["-c", "pass"], None),
}
PIPELINE = "qwen2_5_omni"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--model", type=Path, help="a Qwen2.5-Omni checkpoint directory")
    parser.add_argument("--runs", type=int, default=5, help="times each command (default 5)")
    parser.add_argument("--quick", action="store_true", help="the commands alone, once: whether it works")
    arguments = parser.parse_args()
    found = list(_of_commands(1 if arguments.quick else arguments.runs))
    if not arguments.quick:
        found += _of_workers(arguments.model)
    report(found, arguments.json)


def _of_commands(runs: int) -> Iterator[Figure]:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in track(range(runs), description="commands"):
        for name, (words, _target) in COMMANDS.items():
            times[name].append(_seconds([sys.executable, *words]))
    for name, (_words, target) in COMMANDS.items():
        yield figure(name, "s", times[name], at_most=target)


def _of_workers(model: Path | None) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory:
        if model is None:
            from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint

            model = build_tiny_checkpoint(Path(directory) / "checkpoint")
        settings = Settings(data_dir=Path(directory) / "data", models={PIPELINE: model})
        with EmbeddedStack(settings, pipelines=[PIPELINE]) as stack:
            for child in stack.children():
                yield figure(f"{child.name}, all starting at once", "s", [child.start_s or 0.0])
        yield figure("vLLM's own LLM(…), alone", "s", [_seconds([sys.executable, "-c", _BARE, str(model)])])


_BARE = """
import os, sys
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
if __name__ == "__main__":
    from pathlib import Path
    from omni_jobs.settings import Settings
    from omni_jobs.pipelines.loader import load_pipelines
    from workers.stages.engine_args import OmniEngineArgs
    from workers.stages.stage import Stage
    pipeline = load_pipelines(Settings().resolved_stage_configs)["qwen2_5_omni"]
    stage = Stage(pipeline, pipeline.stage("thinker"), Path(sys.argv[1]))
    from vllm import LLM
    LLM(**OmniEngineArgs.for_stage(stage.config, stage.model, Settings()).vllm_args())
"""


def _seconds(command: Sequence[str]) -> float:
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{json.dumps(list(command))}: {done.stderr[-2000:]}")
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
