"""Rows under a real limit on memory, for test_diffusion_batches: prints the kind of each row's result.

python -m tests.integration.runners.diffusion_memory CHECKPOINT
"""

import json
import resource
import sys
from pathlib import Path

import torch

from tests.integration.runners.codec_prompts import codec_prompt, run_together
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen2_5_omni.token2wav import Token2Wav, load_token2wav
from workers.runners.diffusion.step_budget import StepBudget

# 0.5 s of speech take 5 MB more than the loaded model, the long row's 30 s more than 50 MB.
SHORT, LONG, ROOM = 25, 1500, 16 << 20


def run(model: Token2Wav, lengths: list[int]) -> list[str]:
    """Return the kind of each row's result."""
    # Each ends at another step, so that the vocoder takes each alone: what oneDNN keeps of a failed try is not ours.
    parameters = [OdeParameters(steps=2 + number, solver="euler") for number in range(len(lengths))]
    prompts = [
        codec_prompt(torch.full((length,), 5), "Ethan", each, number)
        for number, (length, each) in enumerate(zip(lengths, parameters, strict=True))
    ]
    return [type(row.result).__name__ for row in run_together(model, prompts, budget=StepBudget(1 << 20, 8))]


def writable_bytes() -> int:
    """Return the bytes that RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no VmData")


def main() -> None:
    torch.set_num_threads(1)
    model = load_token2wav(Path(sys.argv[1]), torch.device("cpu"))
    run(model, [SHORT])  # what libraries keep from a first run is there before the limit
    resource.setrlimit(resource.RLIMIT_DATA, (writable_bytes() + ROOM, resource.RLIM_INFINITY))
    batch = run(model, [SHORT, SHORT, LONG, SHORT])
    print(json.dumps({"batch": batch, "after": run(model, [SHORT])}))


if __name__ == "__main__":
    main()
