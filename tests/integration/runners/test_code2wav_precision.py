"""code2wav keeps its convolutions in float32 wherever it runs them; on a GPU cuDNN would round them to TF32."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.runners.codec_prompts import prompt, run_together
from workers.models.qwen2_5_omni.token2wav import load_token2wav


def test_no_convolution_may_be_rounded(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of the voices, which are encoded while the model is loaded, nor those of steps and vocoder."""
    seen: dict[str, set[bool]] = {"load": set(), "run": set()}
    phase = "load"

    def note(module: torch.nn.Module, _: Any) -> None:
        if isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d):
            seen[phase].add(torch.backends.cudnn.allow_tf32)

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's own default
    hook = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        model = load_token2wav(tiny_checkpoint, torch.device("cpu"))
        phase = "run"
        run_together(model, [prompt(12)])
    finally:
        hook.remove()
    assert seen == {"load": {False}, "run": {False}}
