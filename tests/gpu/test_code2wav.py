"""code2wav on the tiny checkpoint: the waveforms of the CPU, which the other tests compare with Transformers."""

from pathlib import Path

import torch

from tests.gpu.conftest import Record
from tests.gpu.rows import alone, largest_differences, run
from workers.models.qwen2_5_omni.code2wav import Code2Wav, load_code2wav
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

CPU = torch.device("cpu")
VOICES = ("Chelsie", "Ethan")


def _load(checkpoint: Path, device: torch.device) -> Code2Wav:
    return load_code2wav(OmniModelConfig(checkpoint, "qwen2_5_omni", "code2wav", VOICES), device, None)


def _prompts() -> list[DiffusionPrompt]:
    generator = torch.Generator().manual_seed(0)
    return [
        DiffusionPrompt(
            {"codes": torch.randint(0, 8192, (length,), generator=generator)},
            {"voice": VOICES[n % 2]},
            OdeParameters(steps=3 + n),
            n,
        )
        for n, length in enumerate((12, 40, 25, 60))
    ]


def test_rows_together_equal_the_cpus_alone(qwen2_5_omni: Path, device: torch.device, record: Record) -> None:
    together = run(_load(qwen2_5_omni, device), _prompts(), device)
    each = alone(_load(qwen2_5_omni, CPU), _prompts(), CPU)
    differences = largest_differences(together, each, "waveform")
    record("code2wav: largest difference from the CPU's waveform", "", differences)
    assert max(differences) <= 1e-4
