"""``FilmDenoiser``: Wan's two transformers as a diffusion model: embeddings and noise → latents of a video.

In float32 a row's result is that of Diffusers' ``WanPipeline`` for the same embeddings and noise, and that of
``WanImageToVideoPipeline`` for the same picture. Rows of a step have one size and length, because the transformers'
rotary positions are those of one. All else is a row's own: its text, its number of steps, its guidance, where it is,
and so the transformer whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from omni_jobs.errors import ModelError
from workers.models.pictures.diffusers_checkpoint import denoising_dtype, fingerprint
from workers.models.pictures.guidance import GuidedDenoiser, GuidedRow, Pass
from workers.models.pictures.vae import PictureVae, finite_floats
from workers.models.wan.expert_adapters import ExpertAdapters
from workers.models.wan.family import CHANNELS
from workers.models.wan.model_index import EXPERTS, PICTURE_CLASS, TEXT_CLASS, read_boundary_ratio
from workers.models.wan.parameters import AnimateParameters, FilmParameters
from workers.models.wan.prompts import MAX_TEXT_TOKENS
from workers.models.wan.size import FilmSize
from workers.models.wan.solver import Solver, read_unipc_config
from workers.models.wan.transformers import PICTURE_CHANNELS, Experts, load_experts
from workers.models.wan.vae import load_vae
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.saved_row import SavedRow
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import TensorTree

_Asked: TypeAlias = FilmParameters | AnimateParameters

_SNAPSHOT = 1  # the version of what ``save`` returns

# Latent tokens of one forward, a video of 832 x 480 pixels and 81 frames being 32,760, and guidance doubling them. On a
# CPU more rows in a forward are no faster; a step of many rows only makes each wait for all.
_MAX_BATCH_COST: Mapping[str, int] = {"cpu": 4096, "cuda": 131_072}


def load_denoiser(model: OmniModelConfig, device: torch.device, dtype: str | None) -> FilmDenoiser:
    """Return the transformers of a checkpoint that films a description.

    They are in float32 on a CPU and in bfloat16 on a GPU, unless ``dtype`` says. Raises ConfigError naming a part that
    is missing or wrong.
    """
    return _load(model, device, dtype, begins=False)


def load_animator(model: OmniModelConfig, device: torch.device, dtype: str | None) -> FilmDenoiser:
    """Return the transformers of a checkpoint that begins with a picture, as ``load_denoiser`` does."""
    return _load(model, device, dtype, begins=True)


def _load(model: OmniModelConfig, device: torch.device, dtype: str | None, *, begins: bool) -> FilmDenoiser:
    boundary_ratio = read_boundary_ratio(model.path, PICTURE_CLASS if begins else TEXT_CLASS)
    config = read_unipc_config(model.path)
    channels = CHANNELS + (PICTURE_CHANNELS if begins else 0)
    experts = load_experts(model, device, denoising_dtype(dtype, device), channels)
    identity = f"{fingerprint(model.path, (*EXPERTS, 'scheduler'))} {boundary_ratio}"
    return FilmDenoiser(
        experts,
        config,
        boundary_ratio,
        identity,
        lambda: load_vae(model.path, device, torch.float32),
        begins=begins,
    )


@dataclass(slots=True, kw_only=True)
class FilmRow(GuidedRow):
    """One video under way. Its latents are [C, F, h, w], its conditions texts [512, H] in the transformers' dtype.

    scales  of guidance, for each of the two transformers
    begin   what the transformers see beside the latents, float32 [4 + C, F, h, w], where the video begins with a
            picture: 1 for each frame that is given, and the latents of a video of the picture and nothing; else None
    """

    size: FilmSize
    solver: Solver
    scales: tuple[float, float]
    begin: torch.Tensor | None = None

    @property
    def steps_done(self) -> int:
        return self.solver.done

    @steps_done.setter
    def steps_done(self, done: int) -> None:
        """Be at another step; the second device's row is, which takes none itself."""
        self.solver = self.solver.at(done)


class FilmDenoiser(GuidedDenoiser[FilmRow]):
    """A ``ResumableModel`` and ``PreviewingModel``. Its output keeps the flow ``latents``.

    A prompt has a tensor ``prompt_embeds`` float [T, H] and maybe ``negative_prompt_embeds`` float [U, H]. Its
    parameters are ``FilmParameters``; where the video begins with a picture it has ``begin_latents`` float
    [C, F, h, w], too, and ``AnimateParameters``.
    """

    def __init__(
        self,
        experts: Experts,
        config: Mapping[str, Any],
        boundary_ratio: float,
        identity: str,
        load_vae: Callable[[], PictureVae],
        *,
        begins: bool = False,
    ) -> None:
        """Take both transformers and the scheduler's settings.

        ``boundary_ratio``: of the times, below which the second transformer works. ``identity`` tells the model from
        others; ``load_vae`` is called for previews. ``begins``: whether each video begins with a picture.
        """
        super().__init__(experts.device, _MAX_BATCH_COST, load_vae)
        self.experts = experts
        self._config = config
        self._boundary_ratio = boundary_ratio
        self._identity = identity
        self._begins = begins
        self.adapters = ExpertAdapters()

    def check(self, prompt: DiffusionPrompt[_Asked]) -> Cost:
        """Return the latent tokens of a step. Raises ModelError naming what does not fit."""
        self.adapters.check(prompt.parameters.lora)
        self._check_embeds(prompt.tensors.get("prompt_embeds"), "prompt_embeds")
        if "negative_prompt_embeds" in prompt.tensors:
            self._check_embeds(prompt.tensors["negative_prompt_embeds"], "negative_prompt_embeds")
        size = self._size(prompt)
        return Cost(size.tokens * (2 if _is_guided(prompt) else 1), prompt.parameters.steps, size)

    def begin(self, prompt: DiffusionPrompt[_Asked]) -> FilmRow:
        """Return the row of a prompt: noise of its seed."""
        parameters = prompt.parameters
        size = self._size(prompt)
        return FilmRow(
            size=size,
            solver=Solver.of(self._config, parameters.steps),
            scales=(parameters.guidance_scale, parameters.guidance_scale_2),
            seed=prompt.seed,
            latents=_noise(size, prompt.seed).to(self.device),
            condition=self._text(prompt.tensors["prompt_embeds"]),
            unconditional=self._text(prompt.tensors["negative_prompt_embeds"]) if _is_guided(prompt) else None,
            begin=_seen_begin(self._begin_latents(prompt)).to(self.device) if self._begins else None,
            lora=parameters.lora,
            prompt=prompt,
        )

    def adapt(self, directories: Mapping[str, str]) -> None:
        """Load LoRA adapters of the transformers. Raises ConfigError naming the module and the file."""
        self.adapters.load(self.experts.transformers, directories, self.experts.dtype)

    def offload(self, device: torch.device) -> None:
        self.experts.offload()

    def step(self, rows: Sequence[FilmRow]) -> None:
        """Take one step of UniPC for each row."""
        velocities = self.velocities(rows)
        moved = [row.solver.step(row.latents, velocity) for row, velocity in zip(rows, velocities, strict=True)]
        for row, (latents, solver) in zip(rows, moved, strict=True):
            row.latents, row.solver = latents, solver
        self.joint.count_step()

    def finish(self, rows: Sequence[FilmRow], wanted: Callable[[int], bool]) -> Iterator[tuple[int, RowOutput]]:
        """Yield each row's ``latents`` float32 [C, F, h, w]."""
        for number, row in enumerate(rows):
            if wanted(number):
                yield number, RowOutput({"latents": row.latents})

    def save(self, row: FilmRow) -> RowOutput:
        """Return the row's latents and its solver's as they are between two steps, and what they were made with."""
        tensors = {"latents": row.latents.to("cpu", copy=True), **row.solver.saved()}
        return RowOutput(tensors, {"steps_done": row.steps_done, **self._origin(row)})

    def resume(
        self, prompt: DiffusionPrompt[_Asked], tensors: Mapping[str, TensorTree], values: Mapping[str, Any]
    ) -> FilmRow:
        """Return the row that ``save`` saw. Raises ModelError naming what is missing, wrong, or of another job."""
        row, saved = self.begin(prompt), SavedRow(tensors, values)
        saved.check(**self._origin(row))
        done = saved.steps_done(row.solver.steps)
        row.solver = row.solver.resumed(saved, done, row.latents)
        row.latents = saved.tensor("latents", tuple(row.latents.shape), torch.float32).to(self.device, copy=True)
        return row

    def preview(self, row: FilmRow) -> torch.Tensor:
        """Return the frame in the middle as the last step saw it come, roughly: uint8 [h, w, 3].

        Raises ConfigError when the checkpoint has no VAE here.
        """
        latents = row.latents if row.solver.foreseen is None else row.solver.foreseen
        return self.colours().picture(latents[:, latents.shape[1] // 2])

    def tokens(self, each: Pass[FilmRow]) -> int:
        return each.row.size.tokens

    def forward(self, passes: Sequence[Pass[FilmRow]]) -> Sequence[torch.Tensor]:
        """Run each transformer once for the rows whose turn with it is, all of one size; return [C, F, h, w] each."""
        found: dict[int, torch.Tensor] = {}
        for expert in range(len(EXPERTS)):
            numbers = [number for number, each in enumerate(passes) if self._expert(each.row) == expert]
            if numbers:
                turn = [passes[number] for number in numbers]
                with self.adapters.rows(expert, [each.row.lora for each in turn]):
                    velocities = self.experts.forward(
                        expert,
                        torch.stack([_seen(each.row) for each in turn]),
                        torch.stack([each.row.solver.time for each in turn]),
                        torch.stack([each.condition for each in turn]),
                    )
                found.update(zip(numbers, velocities, strict=True))
        return [found[number] for number in range(len(passes))]

    def guided(self, row: FilmRow, plain: torch.Tensor, unguided: torch.Tensor) -> torch.Tensor:
        return unguided + row.scales[self._expert(row)] * (plain - unguided)

    def _expert(self, row: FilmRow) -> int:
        """Return the number of the transformer that takes a row's next step."""
        return 0 if int(row.solver.time) >= self._boundary_ratio * row.solver.train_times else 1

    def _origin(self, row: FilmRow) -> Mapping[str, Any]:
        """Return the values that a snapshot and the job that goes on from it must have in common."""
        return {
            "version": _SNAPSHOT,
            "lora": self.adapters.identity(row.lora),
            "model": self._identity,
            "dtype": str(self.experts.dtype).removeprefix("torch."),
            **row.size._asdict(),
            "steps": row.solver.steps,
            "seed": row.seed,
            "guidance_scales": [1.0, 1.0] if row.unconditional is None else list(row.scales),
        }

    def _size(self, prompt: DiffusionPrompt[_Asked]) -> FilmSize:
        """Return the size of a prompt's video. Raises ModelError for a begin that does not fit."""
        if isinstance(prompt.parameters, FilmParameters):
            if self._begins or "begin_latents" in prompt.tensors:
                raise ModelError("this model films a description, and begins with no picture", field="begin_latents")
            return FilmSize.of(prompt.parameters)
        return FilmSize.of_latents(*self._begin_latents(prompt).shape[1:])

    def _begin_latents(self, prompt: DiffusionPrompt[_Asked]) -> torch.Tensor:
        return finite_floats(
            prompt.tensors.get("begin_latents"),
            "begin_latents",
            lambda shape: len(shape) == 4 and shape[0] == CHANNELS and FilmSize.of_latents(*shape[1:]).is_possible,
            f"[{CHANNELS}, F, h, w] of a video",
        )

    def _check_embeds(self, embeds: object, name: str) -> None:
        width = self.experts.text_width
        due = f"[1 … {MAX_TEXT_TOKENS}, {width}]"
        finite_floats(
            embeds, name, lambda shape: len(shape) == 2 and 1 <= shape[0] <= MAX_TEXT_TOKENS and shape[1] == width, due
        )

    def _text(self, embeds: TensorTree) -> torch.Tensor:
        """Return embeddings [T, H] as a transformer takes them: [512, H], on the model's device."""
        if not isinstance(embeds, torch.Tensor):
            raise ModelError("there are no embeddings", field="prompt_embeds")
        text = torch.zeros(MAX_TEXT_TOKENS, embeds.shape[1], dtype=self.experts.dtype, device=self.device)
        text[: len(embeds)] = embeds
        return text


def _noise(size: FilmSize, seed: int) -> torch.Tensor:
    """Return noise float32 [C, F, h, w], drawn on the CPU, so that it depends on the seed alone; so Diffusers does."""
    return torch.randn(CHANNELS, *size.latents, generator=torch.Generator().manual_seed(seed))


def _seen_begin(latents: torch.Tensor) -> torch.Tensor:
    """Return what the transformers see of the begin's latents [C, F, h, w], behind 1 for each frame that is given.

    A latent frame stands for four frames, and the first one for one, which counts four times.
    """
    given = torch.zeros(PICTURE_CHANNELS - CHANNELS, *latents.shape[1:])
    given[:, 0] = 1
    return torch.cat([given, latents.float()])


def _seen(row: FilmRow) -> torch.Tensor:
    """Return what the transformers see of a row, [C′, F, h, w]."""
    return row.latents if row.begin is None else torch.cat([row.latents, row.begin])


def _is_guided(prompt: DiffusionPrompt[_Asked]) -> bool:
    return prompt.parameters.guidance_scale > 1 and "negative_prompt_embeds" in prompt.tensors
