"""Qwen3-Omni's code2wav on the diffusion engine: Transformers' waveform, in whatever company."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from omni_jobs.errors import ConfigError, ModelError
from tests.oracles.qwen3_omni import Qwen3OmniReference
from tests.services.checkpoint import TinyCheckpoints
from workers.models.qwen3_omni.code2wav import FrameDecoder, load_frame_decoder
from workers.models.qwen3_omni.parameters import ChunkParameters
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig


def codes(frames: int) -> torch.Tensor:
    return torch.randint(0, 256, (frames, 16), generator=torch.Generator().manual_seed(frames))


def prompt(
    frames: torch.Tensor,
    parameters: ChunkParameters = ChunkParameters(),  # noqa: B008 - frozen
) -> DiffusionPrompt[ChunkParameters]:
    return DiffusionPrompt({"frames": frames}, {}, parameters, 1)


def model_config(checkpoint: Path) -> OmniModelConfig:
    return OmniModelConfig(checkpoint, "qwen3_omni", "code2wav")


@pytest.fixture(scope="module")
def decoder(tiny_qwen3_omnis: TinyCheckpoints) -> FrameDecoder:
    return load_frame_decoder(model_config(tiny_qwen3_omnis(0)), torch.device("cpu"), None)


@pytest.fixture(scope="module")
def reference(tiny_qwen3_omnis: TinyCheckpoints) -> Qwen3OmniReference:
    return Qwen3OmniReference(tiny_qwen3_omnis(0))


def expected(reference: Qwen3OmniReference, prompt: DiffusionPrompt[ChunkParameters]) -> torch.Tensor:
    frames, parameters = prompt.tensors["frames"], prompt.parameters
    assert isinstance(frames, torch.Tensor)
    with torch.no_grad():
        waveform: torch.Tensor = reference.model.code2wav.chunked_decode(
            frames.T[None], chunk_size=parameters.chunk_frames, left_context_size=parameters.context_frames
        )
    return waveform.reshape(-1)


def decode(decoder: FrameDecoder, prompts: Sequence[DiffusionPrompt[ChunkParameters]]) -> list[torch.Tensor]:
    """Decode prompts whose rows share their steps for as long as each has some."""
    costs = [decoder.check(each) for each in prompts]
    rows = [decoder.begin(each) for each in prompts]
    for number in range(max(cost.steps for cost in costs)):
        decoder.step([row for row, cost in zip(rows, costs, strict=True) if number < cost.steps])
    found = dict(decoder.finish(rows, lambda number: True))
    assert all(output.values == {"sampling_rate": 24_000} for output in found.values())
    waveforms = [found[number].tensors["waveform"] for number in range(len(rows))]
    return [waveform for waveform in waveforms if isinstance(waveform, torch.Tensor)]


SMALL = ChunkParameters(chunk_frames=10, context_frames=4)


@pytest.mark.parametrize(
    ("frames", "parameters"),
    [
        (1, ChunkParameters()),
        (90, ChunkParameters()),
        (301, ChunkParameters()),
        (27, SMALL),
        (20, ChunkParameters(chunk_frames=10, context_frames=0)),
        (31, ChunkParameters(chunk_frames=3, context_frames=20)),
    ],
)
def test_one_waveform_is_transformers_own(
    decoder: FrameDecoder, reference: Qwen3OmniReference, frames: int, parameters: ChunkParameters
) -> None:
    wanted = prompt(codes(frames), parameters)
    (waveform,) = decode(decoder, [wanted])
    assert waveform.dtype == torch.float32
    assert waveform.std() > 0.01
    torch.testing.assert_close(waveform, expected(reference, wanted), rtol=0, atol=1e-5)


def test_rows_of_all_lengths_share_steps(decoder: FrameDecoder, reference: Qwen3OmniReference) -> None:
    prompts = [prompt(codes(frames), SMALL) for frames in (3, 27, 10, 41, 1)]
    for waveform, wanted in zip(decode(decoder, prompts), prompts, strict=True):
        torch.testing.assert_close(waveform, expected(reference, wanted), rtol=0, atol=1e-5)


async def test_the_engine_runs_it(tiny_qwen3_omnis: TinyCheckpoints, reference: Qwen3OmniReference) -> None:
    args = OmniEngineArgs(
        stage="code2wav",
        model=model_config(tiny_qwen3_omnis(0)),
        device="cpu",
        device_index=None,
        max_in_flight=4,
        engine=DiffusionEngine(),
    )
    runner = DiffusionRunner(args)
    await runner.start()
    prompts = [prompt(codes(frames), SMALL) for frames in (5, 23)]
    outputs = await asyncio.gather(*(runner.run(each, lambda progress: None) for each in prompts))
    await runner.close()
    for output, wanted in zip(outputs, prompts, strict=True):
        found = output.multimodal_outputs["waveform"]
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found, expected(reference, wanted), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (torch.zeros(0, 16, dtype=torch.int64), "no frames"),
        (torch.zeros(3, 15, dtype=torch.int64), r"int64 \[N, 16\]"),
        (torch.zeros(3, 16), "float32"),
        (torch.full((2, 16), 256), r"code 256 at \[0, 0\]"),
        (torch.full((2, 16), -1), "code -1"),
    ],
)
def test_frames_that_it_cannot_decode_are_refused(decoder: FrameDecoder, frames: torch.Tensor, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        decoder.check(prompt(frames))
    assert caught.value.field == "frames"


def test_a_checkpoint_without_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no code2wav_config"):
        load_frame_decoder(model_config(tmp_path), torch.device("cpu"), None)
