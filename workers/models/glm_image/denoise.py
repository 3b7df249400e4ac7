"""``Denoise``: GLM-Image's diffusion transformer as a diffusion model: image tokens → latents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omni_jobs.errors import ConfigError, ModelError
from workers.models.glm_image.glyph_encoder import GlyphEncoder, load_glyph_encoder
from workers.models.glm_image.grids import PIXELS, SIDES
from workers.models.glm_image.parameters import DenoiseParameters
from workers.models.glm_image.schedule import glm_schedule
from workers.models.glm_image.sources import SIDE, Source
from workers.models.glm_image.transformer import Condition, Transformer
from workers.models.glm_image.vae import load_vae
from workers.models.pictures.compact_transformer import load_compact
from workers.models.pictures.diffusers_checkpoint import denoising_dtype, fingerprint
from workers.models.pictures.euler import EulerDenoiser, EulerRow
from workers.models.pictures.guidance import Pass
from workers.models.pictures.schedule import read_euler_config
from workers.models.pictures.vae import LATENT, PictureVae
from workers.runners.diffusion.model import Cost
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig

TRANSFORMER_CLASS = "GlmImageTransformer2DModel"

_PARTS = ("transformer", "text_encoder", "tokenizer", "scheduler")  # that decide the latents
_PATCH = 2  # latents of a patch's side; an image token's side has two patches
_PATCHES = 4  # of an image token

# Patches and text tokens, those of a guided picture twice. A picture of 1024 x 1024 pixels has 4,096 patches. On a CPU
# larger steps are no faster, and all their rows wait for the last.
_MAX_STEP_TOKENS: Mapping[str, int] = {"cpu": 8192, "cuda": 65_536}
_SAVED_BY = "glm_image denoise 1"  # raised when a saved row comes to mean something else


def load_denoise(model: OmniModelConfig, device: torch.device, dtype: str | None) -> Denoise:
    """Return the model of a checkpoint; ``dtype`` None or auto: bfloat16 on a GPU, else float32. Raises ConfigError."""
    torch_dtype = denoising_dtype(dtype, device)
    transformer = Transformer(load_compact(model, TRANSFORMER_CLASS, device, torch_dtype), device)
    if transformer.patch != _PATCH:
        file = str(model.path / "transformer" / "config.json")
        raise ConfigError(f"patches of {_PATCH} latents are due", file=file, field="patch_size")
    glyphs = load_glyph_encoder(model.path, device, torch_dtype)
    return Denoise(
        transformer,
        glyphs,
        read_euler_config(model.path),
        fingerprint(model.path, _PARTS),
        load_vae=lambda: load_vae(model.path, device, torch.float32),
    )


@dataclass(slots=True, kw_only=True)
class LatentRow(EulerRow):
    """One picture under way. Its latents are [C, h, w], its conditions each a ``Condition``.

    size  height and width in pixels
    """

    size: tuple[int, int]
    parameters: DenoiseParameters


class Denoise(EulerDenoiser[LatentRow]):
    """GLM-Image's ``EulerDenoiser``.

    A prompt has a tensor ``token_ids`` int64 [h * w], values ``height`` and ``width`` in pixels, and ``glyph_texts``, a
    list of texts. Where it edits pictures it has lists of their image tokens and their latents: ``source_ids``, each
    int64 [h, w], and ``source_latents``, each float [C, 4 h, 4 w].
    """

    def __init__(
        self,
        transformer: Transformer,
        glyphs: GlyphEncoder,
        schedule: Mapping[str, Any],
        fingerprint: str,
        load_vae: Callable[[], PictureVae],
    ) -> None:
        """Take the loaded parts; ``load_vae`` is called when the first preview is asked for."""
        super().__init__(transformer.device, _MAX_STEP_TOKENS, load_vae)
        self._transformer = transformer
        self._glyphs = glyphs
        self._schedule = schedule
        self._fingerprint = fingerprint

    def check(self, prompt: DiffusionPrompt[DenoiseParameters]) -> Cost:
        """Return the tokens that a step of the picture takes. Raises ModelError naming the field that does not fit."""
        request = _Request.of(prompt, self._transformer.codebook, self._transformer.channels)
        self.adapters.check(request.parameters.lora)
        tokens = request.patches + self._glyphs.most_tokens(request.glyph_texts) + request.source_patches
        if request.parameters.guidance_scale > 1:
            tokens += request.patches + 1
        return Cost(tokens, request.parameters.steps, request.size)

    def begin(self, prompt: DiffusionPrompt[DenoiseParameters]) -> LatentRow:
        """Return the row of a prompt, with noise in the place of latents.

        The noise is drawn on the CPU in float32, so that it depends on the seed alone. In float32 it is what Diffusers
        draws from a CPU generator of this seed.
        """
        request = _Request.of(prompt, self._transformer.codebook, self._transformer.channels)
        height, width = request.size
        generator = torch.Generator().manual_seed(prompt.seed)
        noise = torch.randn(self._transformer.channels, height // LATENT, width // LATENT, generator=generator)
        sources = [(patch_tokens(ids), latents) for ids, latents in request.sources]
        glyphs = self._glyphs.encode(request.glyph_texts)
        image_tokens = patch_tokens(request.token_ids.view(height // PIXELS, width // PIXELS))
        unconditional = None
        with self.adapters.rows([request.parameters.lora]):
            memory = self._transformer.memory(sources)
            condition = self._transformer.condition(glyphs, image_tokens, request.patches, memory)
            if request.parameters.guidance_scale > 1:
                unconditional = self._transformer.condition(self._glyphs.without_text, None, request.patches)
        return LatentRow(
            schedule=glm_schedule(self._schedule, request.patches, request.parameters.steps),
            seed=prompt.seed,
            latents=noise.to(self.device, self._transformer.dtype).float(),
            condition=condition,
            unconditional=unconditional,
            size=request.size,
            parameters=request.parameters,
            lora=request.parameters.lora,
            prompt=prompt,
        )

    def adapt(self, directories: Mapping[str, str]) -> None:
        """Load LoRA adapters of the transformer. Raises ConfigError naming the module and the file."""
        self.adapters.load(self._transformer.network, directories, self._transformer.dtype)

    def offload(self, device: torch.device) -> None:
        self._transformer.offload()

    def tokens(self, each: Pass[LatentRow]) -> int:
        keys: int = each.condition.keys
        return keys

    def forward(self, passes: Sequence[Pass[LatentRow]]) -> Sequence[torch.Tensor]:
        """Run the transformer for rows of one size, once unless texts differ much in length: [C, h, w] each."""
        found: dict[int, torch.Tensor] = {}
        for numbers in _runs([each.condition for each in passes]):
            rows = [passes[number].row for number in numbers]
            times = torch.stack([row.schedule.times[row.steps_done] for row in rows]).to(self.device)
            latents = torch.stack([row.latents for row in rows])
            conditions = [passes[number].condition for number in numbers]
            with self.adapters.rows([row.lora for row in rows]):
                velocities = self._transformer.velocities(latents, conditions, times, rows[0].size)
            found.update(zip(numbers, velocities, strict=True))
        return [found[number] for number in range(len(passes))]

    def guided(self, row: LatentRow, plain: torch.Tensor, unguided: torch.Tensor) -> torch.Tensor:
        return unguided + row.parameters.guidance_scale * (plain - unguided)

    def unpacked(self, row: LatentRow, latents: torch.Tensor) -> torch.Tensor:
        return latents

    def origin(self, row: LatentRow) -> Mapping[str, Any]:
        return {
            "saved_by": _SAVED_BY,
            "model": self._fingerprint,
            "dtype": str(self._transformer.dtype),
            "size": list(row.size),
            "parameters": row.parameters.model_dump(mode="json"),
            "seed": row.seed,
        }


def _runs(conditions: Sequence[Condition]) -> Iterable[Sequence[int]]:
    """Return the numbers of conditions in runs, in each of which the longest has less than twice the shortest's keys.

    Texts and source pictures of a run are padded to the longest, so a long one must not have many short ones with it.
    """
    runs: dict[int, list[int]] = {}
    for number, condition in enumerate(conditions):
        runs.setdefault(condition.keys.bit_length(), []).append(number)
    return runs.values()


@dataclass(frozen=True, slots=True)
class _Request:
    """A prompt, checked."""

    token_ids: torch.Tensor
    size: tuple[int, int]
    glyph_texts: list[str]
    sources: list[Source]
    parameters: DenoiseParameters

    @classmethod
    def of(cls, prompt: DiffusionPrompt[DenoiseParameters], codebook: int, channels: int) -> _Request:
        """Raise ModelError naming what is missing or wrong."""
        size = (SIDES.of(prompt.values, "height"), SIDES.of(prompt.values, "width"))
        texts = prompt.values.get("glyph_texts")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ModelError("a list of texts is due", field="glyph_texts")
        token_ids = prompt.tensors.get("token_ids")
        due = (size[0] // PIXELS * (size[1] // PIXELS),)
        if not isinstance(token_ids, torch.Tensor) or token_ids.dtype != torch.int64:
            raise ModelError("int64 image tokens are due", field="token_ids")
        if token_ids.shape != due:
            raise ModelError(f"{list(token_ids.shape)} image tokens where {list(due)} are due", field="token_ids")
        _check_codebook(token_ids, codebook, "token_ids")
        return cls(token_ids, size, texts, _sources(prompt, codebook, channels), prompt.parameters)

    @property
    def patches(self) -> int:
        height, width = self.size
        side = _PATCH * LATENT
        return (height // side) * (width // side)

    @property
    def source_patches(self) -> int:
        return sum(_PATCHES * source.token_ids.numel() for source in self.sources)


def _sources(prompt: DiffusionPrompt[DenoiseParameters], codebook: int, channels: int) -> list[Source]:
    """Return a prompt's source pictures. Raise ModelError naming what is missing or wrong."""
    ids, latents = prompt.tensors.get("source_ids", []), prompt.tensors.get("source_latents", [])
    if not isinstance(ids, list) or not isinstance(latents, list) or len(ids) != len(latents):
        raise ModelError("a list of image tokens and one of latents are due, of each picture", field="source_ids")
    for tokens, encoded in zip(ids, latents, strict=True):
        if tokens.dtype != torch.int64 or tokens.ndim != 2 or not tokens.numel():
            raise ModelError("int64 image tokens [h, w] are due", field="source_ids")
        _check_codebook(tokens, codebook, "source_ids")
        due = (channels, *(SIDE * side for side in tokens.shape))
        if encoded.shape != due or not encoded.is_floating_point() or not bool(torch.isfinite(encoded).all()):
            message = f"{encoded.dtype} {list(encoded.shape)} where finite latents {list(due)} are due"
            raise ModelError(message, field="source_latents")
    return [Source(*source) for source in zip(ids, latents, strict=True)]


def _check_codebook(token_ids: torch.Tensor, codebook: int, field: str) -> None:
    if bool(((token_ids < 0) | (token_ids >= codebook)).any()):
        raise ModelError(f"an image token outside 0 … {codebook - 1}", field=field)


def patch_tokens(token_ids: torch.Tensor) -> torch.Tensor:
    """Return the image token of each patch of a grid int64 [h, w], int64 [4 h w]: two rows and columns have one."""
    return token_ids.repeat_interleave(2, 0).repeat_interleave(2, 1).flatten()
