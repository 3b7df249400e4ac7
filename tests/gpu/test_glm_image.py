"""GLM-Image on the tiny checkpoint in float32: denoising, previews and decoding as on the CPU, in any company."""

from pathlib import Path

import pytest
import torch

from omni_jobs.pipelines.parameters import StageParameters
from tests.gpu.conftest import Record
from tests.gpu.rows import alone, largest_differences, run
from workers.models.glm_image.denoise import Denoise, load_denoise
from workers.models.glm_image.parameters import DenoiseParameters
from workers.models.glm_image.vae import load_vae
from workers.models.pictures.decoder import PictureDecoder
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

CPU = torch.device("cpu")
SIDES = (64, 96)  # height and width
TEXTS = ([], ["Open"], ["Café 24", "every day"])


def _prompt(n: int) -> DiffusionPrompt:
    generator = torch.Generator().manual_seed(n)
    height, width = SIDES
    return DiffusionPrompt(
        {"token_ids": torch.randint(0, 16_384, (height // 32 * width // 32,), generator=generator)},
        {"height": height, "width": width, "glyph_texts": TEXTS[n % 3]},
        DenoiseParameters(steps=6 + n, guidance_scale=(1.0, 1.5)[n % 2]),
        n,
        previews=n == 1,
    )


def _load(checkpoint: Path, device: torch.device) -> Denoise:
    return load_denoise(OmniModelConfig(checkpoint, "glm_image", "denoise"), device, "float32")


def test_rows_together_equal_the_cpus_alone(glm_image: Path, device: torch.device, record: Record) -> None:
    """One of them asks for previews, whose colours are found on the device."""
    prompts = [_prompt(n) for n in range(6)]
    together, each = run(_load(glm_image, device), prompts, device), alone(_load(glm_image, CPU), prompts, CPU)
    differences = largest_differences(together, each, "latents")
    record("GLM-Image: 6 rows together, largest difference from the CPU's alone", "", differences)
    assert max(differences) <= 1e-4
    for one, other in zip(together, each, strict=True):
        assert len(one.pictures) == len(other.pictures) == one.prompt.previews
        for picture, reference in zip(one.pictures, other.pictures, strict=True):
            assert (picture.int() - reference.int()).abs().max() <= 2


@pytest.mark.parametrize("whole_pixels", [1 << 20, 64 * 64], ids=["whole", "tiles"])
def test_a_picture_equals_the_cpus(
    glm_image: Path, device: torch.device, record: Record, monkeypatch: pytest.MonkeyPatch, whole_pixels: int
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # by default a GPU's convolutions round to it
    latents = torch.randn(16, 16, 24, generator=torch.Generator().manual_seed(0))
    prompt = DiffusionPrompt({"latents": latents}, {}, StageParameters(), 0)

    def decoded(on: torch.device) -> torch.Tensor:
        vae = load_vae(glm_image, on, torch.float32)
        [caller] = run(PictureDecoder(vae, whole_pixels, tile=64, stride=48), [prompt], on)
        return caller.tensor("pixels").int()

    difference = float((decoded(device) - decoded(CPU)).abs().max())
    record(f"GLM-Image: a picture of {whole_pixels} pixels, largest difference from the CPU's", "of 255", [difference])
    assert difference <= 1
