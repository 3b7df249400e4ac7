"""A batch under a real limit on memory, for test_diffusion_batches: prints the kind of each row's result.

python -m tests.integration.runners.diffusion_memory CHECKPOINT
"""

import json
import resource
import sys
from pathlib import Path

import torch

from omni_jobs.errors import OmniJobsError
from omni_jobs.pipelines.parameters import DiffusionParameters
from workers.models.qwen2_5_omni.token2wav import load_token2wav
from workers.runners.diffusion.gpu_diffusion_model_runner import GPUDiffusionModelRunner
from workers.stages.types import CodecPrompt, OmniModelRunnerOutput

ONE_STEP = DiffusionParameters(steps=2, solver="euler")
# 0.5 s of speech take 5 MB more than the loaded model, the long row's 30 s more than 50 MB.
SHORT, LONG, ROOM = 25, 1500, 16 << 20


class Kinds:
    """A batch watcher that notes what each row ended with."""

    def __init__(self) -> None:
        self.of: dict[int, str] = {}

    def wanted(self, row: int) -> bool:
        return True

    def progress(self, row: int, done: int, total: int) -> None:
        """Nobody reads it."""

    def finished(self, row: int, result: OmniModelRunnerOutput | OmniJobsError) -> None:
        self.of[row] = type(result).__name__


def run(runner: GPUDiffusionModelRunner, lengths: list[int]) -> list[str]:
    kinds = Kinds()
    prompts = [CodecPrompt(torch.full((length,), 5), "Ethan", ONE_STEP, n) for n, length in enumerate(lengths)]
    runner.execute_model(prompts, kinds)
    return [kinds.of[row] for row in range(len(lengths))]


def writable_bytes() -> int:
    """Return the bytes that RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no VmData")


def main() -> None:
    torch.set_num_threads(1)
    runner = GPUDiffusionModelRunner(load_token2wav(Path(sys.argv[1]), torch.device("cpu")))
    run(runner, [SHORT])  # what libraries keep from a first run is there before the limit
    resource.setrlimit(resource.RLIMIT_DATA, (writable_bytes() + ROOM, resource.RLIM_INFINITY))
    batch = run(runner, [SHORT, SHORT, LONG, SHORT])
    print(json.dumps({"batch": batch, "after": run(runner, [SHORT])}))


if __name__ == "__main__":
    main()
