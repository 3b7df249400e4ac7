"""``Denoise``: GLM-Image's diffusion transformer as a diffusion model: image tokens → latents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from omni_jobs.errors import ConfigError, ModelError
from workers.models.glm_image.glyph_encoder import GlyphEncoder, load_glyph_encoder
from workers.models.glm_image.grids import PIXELS, SIDES
from workers.models.glm_image.parameters import DenoiseParameters
from workers.models.glm_image.schedule import GlmSchedules
from workers.models.glm_image.sources import SIDE, Source
from workers.models.glm_image.transformer import Condition, Transformer
from workers.models.glm_image.vae import load_colours
from workers.models.pictures.colours import Colours
from workers.models.pictures.diffusers_checkpoint import fingerprint, load_part
from workers.models.pictures.dtypes import denoising_dtype
from workers.models.pictures.schedule import Schedule
from workers.models.pictures.vae import LATENT
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.saved_row import SavedRow
from workers.runners.diffusion.step_budget import MemoryLimit
from workers.runners.lack_of_memory import lacks_memory
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import TensorTree

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
    transformer = Transformer(load_part(model.path, "transformer", TRANSFORMER_CLASS, device, torch_dtype))
    if transformer.patch != _PATCH:
        file = str(model.path / "transformer" / "config.json")
        raise ConfigError(f"patches of {_PATCH} latents are due", file=file, field="patch_size")
    glyphs = load_glyph_encoder(model.path, device, torch_dtype)
    return Denoise(
        transformer,
        glyphs,
        GlmSchedules(model.path),
        fingerprint(model.path, _PARTS),
        colours=lambda: load_colours(model.path, device),
    )


@dataclass(slots=True)
class LatentRow:
    """One picture on its way.

    latents       float32 [1, C, h, w]
    condition     of the prompt
    unconditional what guidance leads away from; None without guidance
    schedule      its own steps
    size          height and width in pixels
    velocity      where the last step went, float32 [1, C, h, w]; None before the first
    """

    latents: torch.Tensor
    condition: Condition
    unconditional: Condition | None
    schedule: Schedule
    size: tuple[int, int]
    parameters: DenoiseParameters
    seed: int
    steps_done: int = 0
    velocity: torch.Tensor | None = None


class Denoise:
    """A ``ResumableModel`` and ``PreviewingModel``.

    A prompt has a tensor ``token_ids`` int64 [h * w], values ``height`` and ``width`` in pixels, and ``glyph_texts``, a
    list of texts. Where it edits pictures it has lists of their image tokens and their latents: ``source_ids``, each
    int64 [h, w], and ``source_latents``, each float [C, 4 h, 4 w].
    """

    def __init__(
        self,
        transformer: Transformer,
        glyphs: GlyphEncoder,
        schedules: GlmSchedules,
        fingerprint: str,
        colours: Callable[[], Colours],
    ) -> None:
        """Take the loaded parts; ``colours`` is called when the first preview is asked for."""
        self._transformer = transformer
        self._glyphs = glyphs
        self._schedules = schedules
        self._fingerprint = fingerprint
        self._load_colours = colours
        self._colours: Colours | None = None
        self.max_batch_cost = _MAX_STEP_TOKENS[transformer.device.type]
        # Tokens up to which a row that is alone takes its two passes in one forward. On a CPU that is no faster.
        self.joint = MemoryLimit(self.max_batch_cost if transformer.device.type == "cuda" else 0)

    def check(self, prompt: DiffusionPrompt[DenoiseParameters]) -> Cost:
        """Return the tokens that a step of the picture takes. Raises ModelError naming the field that does not fit."""
        request = _Request.of(prompt, self._transformer.codebook, self._transformer.channels)
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
        noise = torch.randn(1, self._transformer.channels, height // LATENT, width // LATENT, generator=generator)
        sources = [(patch_tokens(ids), latents) for ids, latents in request.sources]
        condition = self._transformer.condition(
            self._glyphs.encode(request.glyph_texts),
            patch_tokens(request.token_ids.view(height // PIXELS, width // PIXELS)),
            request.patches,
            self._transformer.memory(sources),
        )
        unconditional = None
        if request.parameters.guidance_scale > 1:
            unconditional = self._transformer.condition(self._glyphs.without_text, None, request.patches)
        return LatentRow(
            noise.to(self._transformer.device, self._transformer.dtype).float(),
            condition,
            unconditional,
            self._schedules.of(request.patches, request.parameters.steps),
            request.size,
            request.parameters,
            prompt.seed,
        )

    def step(self, rows: Sequence[LatentRow]) -> None:
        """Take one step of each row by Euler's method, in one forward pass unless texts differ much in length."""
        velocities = self._velocities(rows)
        moved = []
        for number, row in enumerate(rows):
            velocity = velocities[number, True]
            if row.unconditional is not None:
                unguided = velocities[number, False]
                velocity = unguided + row.parameters.guidance_scale * (velocity - unguided)
            sigma, sigma_next = row.schedule.sigmas[row.steps_done : row.steps_done + 2]
            moved.append((row.latents + (sigma_next - sigma) * velocity, velocity))
        for row, (latents, velocity) in zip(rows, moved, strict=True):
            row.latents, row.velocity = latents, velocity
            row.steps_done += 1
        self.joint.count_step()

    def _velocities(self, rows: Sequence[LatentRow]) -> Mapping[tuple[int, bool], torch.Tensor]:
        """Return where each row goes: its number and whether it is guided → float32 [1, C, h, w].

        A row that is alone takes its two passes one after the other where one forward of both is no faster, or does not
        fit into memory. On a CPU its latents are so those of Diffusers bit for bit.
        """
        passes = [
            _Pass(number, row, condition, guided)
            for number, row in enumerate(rows)
            for condition, guided in ((row.condition, True), (row.unconditional, False))
            if condition is not None
        ]
        tokens = sum(each.condition.keys for each in passes)
        if len(rows) == 1 and tokens <= self.joint.units:
            try:
                return self._run(_runs(passes))
            except RuntimeError as error:
                if not lacks_memory(error):
                    raise
                self.joint.shrink(tokens)  # so that they are tried again only after some steps
        return self._run(_runs(passes) if len(rows) > 1 else [[each] for each in passes])

    def _run(self, runs: Iterable[Sequence[_Pass]]) -> Mapping[tuple[int, bool], torch.Tensor]:
        found: dict[tuple[int, bool], torch.Tensor] = {}
        for run in runs:
            rows = [each.row for each in run]
            times = torch.stack([row.schedule.times[row.steps_done] for row in rows]).to(self._transformer.device)
            latents = torch.cat([row.latents for row in rows])
            conditions = [each.condition for each in run]
            velocities = self._transformer.velocities(latents, conditions, times, rows[0].size)
            for each, velocity in zip(run, torch.tensor_split(velocities, len(run)), strict=True):
                found[each.row_number, each.guided] = velocity
        return found

    def finish(self, rows: Sequence[LatentRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``latents`` float32 [C, h, w]."""
        for number, row in enumerate(rows):
            if wanted(number):
                yield number, RowOutput({"latents": row.latents[0]})

    def save(self, row: LatentRow) -> RowOutput:
        """Return the row's ``latents`` float32 [C, h, w] as they are between two steps."""
        latents = row.latents[0].to("cpu", copy=True)
        return RowOutput({"latents": latents}, {"steps_done": row.steps_done, **self._origin(row)})

    def resume(
        self, prompt: DiffusionPrompt[DenoiseParameters], tensors: Mapping[str, TensorTree], values: Mapping[str, Any]
    ) -> LatentRow:
        """Return the row that was saved. Raises ModelError naming what does not fit."""
        row, saved = self.begin(prompt), SavedRow(tensors, values)
        saved.check(**self._origin(row))
        latents = saved.tensor("latents", tuple(row.latents.shape[1:]), torch.float32)
        row.latents = latents[None].to(self._transformer.device, copy=True)
        row.steps_done = saved.steps_done(row.schedule.steps)
        return row

    def preview(self, row: LatentRow) -> torch.Tensor:
        """Return where the picture would end if it went on straight, roughly, uint8 [h, w, 3]: a pixel to a latent.

        Raises ConfigError when the checkpoint has no VAE here.
        """
        if self._colours is None:
            self._colours = self._load_colours()
        latents = row.latents
        if row.velocity is not None:
            latents = latents - row.schedule.sigmas[row.steps_done] * row.velocity
        return self._colours.picture(latents[0])

    def _origin(self, row: LatentRow) -> dict[str, Any]:
        return {
            "saved_by": _SAVED_BY,
            "model": self._fingerprint,
            "dtype": str(self._transformer.dtype),
            "size": list(row.size),
            "parameters": row.parameters.model_dump(mode="json"),
            "seed": row.seed,
        }


class _Pass(NamedTuple):
    """A row's way through the transformer in one step: with its prompt (guided), or without."""

    row_number: int
    row: LatentRow
    condition: Condition
    guided: bool


def _runs(passes: Sequence[_Pass]) -> Iterable[Sequence[_Pass]]:
    """Return the passes in runs, in each of which the longest has less than twice the keys of the shortest.

    Texts and source pictures of a run are padded to the longest, so a long one must not have many short ones with it.
    """
    runs: dict[int, list[_Pass]] = {}
    for each in passes:
        runs.setdefault(each.condition.keys.bit_length(), []).append(each)
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
