"""``Denoiser``: Qwen-Image's diffusion transformer as a diffusion model: embeddings and noise → latents.

In float32 a row's result is that of Diffusers' ``QwenImagePipeline`` for the same embeddings and noise, and that of
``QwenImageEditPlusPipeline`` for the same pictures. Rows of a step have equal height and width, and so have the
pictures that they edit, because the transformer's rotary positions are those of one list of sizes. All else is a row's
own: its text, its number of steps, its guidance, and where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from omni_jobs.errors import ConfigError, ModelError
from workers.models.pictures.compact_transformer import load_compact, offload_blocks
from workers.models.pictures.diffusers_checkpoint import denoising_dtype, fingerprint
from workers.models.pictures.euler import EulerDenoiser, EulerRow
from workers.models.pictures.guidance import Pass
from workers.models.pictures.schedule import read_euler_config
from workers.models.pictures.vae import PictureVae, finite_floats
from workers.models.qwen_image.family import TOKEN
from workers.models.qwen_image.latents import Sources, noise, unpack
from workers.models.qwen_image.parameters import DrawParameters, EditParameters
from workers.models.qwen_image.schedule import qwen_schedule
from workers.models.qwen_image.size import Size
from workers.models.qwen_image.template import MAX_EDIT_TOKENS, MAX_TEXT_TOKENS
from workers.models.qwen_image.vae import load_vae
from workers.runners.diffusion.model import Cost
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import TensorTree

_Parameters: TypeAlias = DrawParameters | EditParameters

_SNAPSHOT = 1  # the version of what ``save`` returns

# Latent tokens of one forward, a picture of 1024 x 1024 being 4096, and guidance doubling them. On a CPU more rows in a
# forward are no faster; a step of many rows only makes each wait for all.
_MAX_BATCH_COST: Mapping[str, int] = {"cpu": 4096, "cuda": 32_768}

# Fields of the transformer's config that stand for other models: layers, distilled guidance.
_OTHER_MODELS = ("guidance_embeds", "use_additional_t_cond", "use_layer3d_rope")
_EDITS = "zero_cond_t"  # a field of models that edit: tokens of sources are conditioned on time 0


def load_denoiser(model: OmniModelConfig, device: torch.device, dtype: str | None) -> Denoiser:
    """Return the transformer of a checkpoint that draws.

    It is in float32 on a CPU and in bfloat16 on a GPU, unless ``dtype`` says. Raises ConfigError naming a part that is
    missing or wrong.
    """
    return _load(model, device, dtype, edits=False)


def load_editor(model: OmniModelConfig, device: torch.device, dtype: str | None) -> Denoiser:
    """Return the transformer of a checkpoint that edits, as ``load_denoiser`` does."""
    return _load(model, device, dtype, edits=True)


def _load(model: OmniModelConfig, device: torch.device, dtype: str | None, *, edits: bool) -> Denoiser:
    torch_dtype = denoising_dtype(dtype, device)
    schedule = read_euler_config(model.path)
    transformer = load_compact(model, "QwenImageTransformer2DModel", device, torch_dtype)
    file = str(model.path / "transformer" / "config.json")
    for setting in _OTHER_MODELS if edits else (*_OTHER_MODELS, _EDITS):
        if transformer.config.get(setting):
            raise ConfigError("is that of another model than Qwen-Image", file=file, field=setting)
    if (transformer.config.in_channels, transformer.config.patch_size) != (TOKEN, 2):
        raise ConfigError(f"tokens of {TOKEN} channels, patches of 2 x 2 are due", file=file, field="in_channels")
    identity = fingerprint(model.path, ("transformer", "scheduler"))
    return Denoiser(
        transformer,
        schedule,
        identity,
        lambda: load_vae(model.path, device, torch.float32),
        edits=edits,
        device=device,
    )


@dataclass(slots=True, kw_only=True)
class DenoiseRow(EulerRow):
    """One picture under way. Its latents are packed, [N, 64].

    condition, unconditional   texts [T, H], in the model's dtype
    sources                    the pictures that it edits, tokens in the model's dtype; None: it draws
    """

    size: Size
    scale: float
    sources: Sources | None = None

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The picture's size, and those of its sources."""
        return (self.size, *(() if self.sources is None else self.sources.sizes))


class Denoiser(EulerDenoiser[DenoiseRow]):
    """Qwen-Image's ``EulerDenoiser``.

    A prompt has a tensor ``prompt_embeds`` float [T, H] and maybe ``negative_prompt_embeds`` float [U, H]; an edit has
    ``Sources``. Its parameters are ``DrawParameters``, or ``EditParameters`` with a size.
    """

    def __init__(
        self,
        transformer: Any,
        schedule: Mapping[str, Any],
        identity: str,
        load_vae: Callable[[], PictureVae],
        *,
        edits: bool = False,
        device: torch.device | None = None,
    ) -> None:
        """Take the transformer and the scheduler's settings.

        ``identity`` tells the model from others; ``load_vae`` is called for previews.
        ``edits``: whether each row edits pictures; else none does. ``device`` is where it computes; None: where the
        transformer is.
        """
        super().__init__(device or transformer.device, _MAX_BATCH_COST, load_vae)
        self._transformer = transformer
        self._schedule = schedule
        self._identity = identity
        self._edits = edits
        self._max_text_tokens = MAX_EDIT_TOKENS if edits else MAX_TEXT_TOKENS
        self.dtype: torch.dtype = transformer.dtype

    def check(self, prompt: DiffusionPrompt[_Parameters]) -> Cost:
        """Return the latent tokens of a step, those of sources counted. Raises ModelError naming what does not fit."""
        parameters = prompt.parameters
        self.adapters.check(parameters.lora)
        self._check_embeds(prompt.tensors.get("prompt_embeds"), "prompt_embeds")
        if "negative_prompt_embeds" in prompt.tensors:
            self._check_embeds(prompt.tensors["negative_prompt_embeds"], "negative_prompt_embeds")
        sources = self._sources(prompt)
        sizes = (_size(parameters), *(() if sources is None else sources.sizes))
        return Cost(_tokens(sizes) * (2 if _is_guided(prompt) else 1), parameters.steps, sizes)

    def begin(self, prompt: DiffusionPrompt[_Parameters]) -> DenoiseRow:
        """Return the row of a prompt: noise of its seed."""
        parameters = prompt.parameters
        size = _size(parameters)
        sources = self._sources(prompt)
        return DenoiseRow(
            size=size,
            schedule=qwen_schedule(self._schedule, size, parameters.steps),
            scale=parameters.true_cfg_scale,
            seed=prompt.seed,
            latents=noise(size, prompt.seed).to(self.device),
            condition=self._on_device(prompt.tensors["prompt_embeds"]),
            unconditional=self._on_device(prompt.tensors["negative_prompt_embeds"]) if _is_guided(prompt) else None,
            sources=None if sources is None else sources._replace(tokens=self._on_device(sources.tokens)),
            lora=parameters.lora,
            prompt=prompt,
        )

    def adapt(self, directories: Mapping[str, str]) -> None:
        """Load LoRA adapters of the transformer. Raises ConfigError naming the module and the file."""
        self.adapters.load(self._transformer, directories, self.dtype)

    def offload(self, device: torch.device) -> None:
        offload_blocks(self._transformer, device)

    def unpacked(self, row: DenoiseRow, latents: torch.Tensor) -> torch.Tensor:
        return unpack(latents, row.size)

    def origin(self, row: DenoiseRow) -> Mapping[str, Any]:
        return {
            "version": _SNAPSHOT,
            "model": self._identity,
            "dtype": str(self.dtype).removeprefix("torch."),
            **row.size._asdict(),
            "steps": row.schedule.steps,
            "seed": row.seed,
            "true_cfg_scale": row.scale if row.unconditional is not None else 1.0,
            **({} if row.sources is None else {"source_sizes": [list(size) for size in row.sources.sizes]}),
        }

    def _check_embeds(self, embeds: object, name: str) -> None:
        width, most = self._transformer.config.joint_attention_dim, self._max_text_tokens
        due = f"[1 … {most}, {width}]"
        finite_floats(embeds, name, lambda shape: len(shape) == 2 and 1 <= shape[0] <= most and shape[1] == width, due)

    def _sources(self, prompt: DiffusionPrompt[_Parameters]) -> Sources | None:
        if self._edits:
            return Sources.of(prompt)
        if "source_tokens" in prompt.tensors:
            raise ModelError("this model draws, and edits no pictures", field="source_tokens")
        return None

    def _on_device(self, embeds: TensorTree) -> torch.Tensor:
        if not isinstance(embeds, torch.Tensor):
            raise ModelError("there are no embeddings", field="prompt_embeds")
        return embeds.to(self.device, self.dtype, copy=True)  # a copy lets the payload's memory be freed

    def tokens(self, each: Pass[DenoiseRow]) -> int:
        return _tokens(each.row.sizes)

    def forward(self, passes: Sequence[Pass[DenoiseRow]]) -> Sequence[torch.Tensor]:
        """Run the transformer once for rows of one size, and return [N, 64] each.

        It sees the tokens of sources behind those of the picture; what it says of them is of no use.
        """
        rows = [each.row for each in passes]
        grids = [(1, *size.grid) for size in rows[0].sizes]
        embeds, mask = _padded([each.condition for each in passes])
        times = torch.stack([row.schedule.times[row.steps_done] for row in rows]).to(self.device, self.dtype)
        with self.adapters.rows([row.lora for row in rows]):
            prediction: torch.Tensor = self._transformer(
                hidden_states=torch.stack([_seen(row).to(self.dtype) for row in rows]),
                timestep=times / 1000,
                encoder_hidden_states=embeds,
                encoder_hidden_states_mask=mask,
                img_shapes=[grids] * len(rows),
                return_dict=False,
            )[0]
        return list(prediction[:, : rows[0].size.tokens])

    def guided(self, row: DenoiseRow, plain: torch.Tensor, unguided: torch.Tensor) -> torch.Tensor:
        """Return a prediction [N, 64] led away from the unguided one, each token as long as the plain one."""
        combined = unguided + (row.scale * (plain - unguided).float()).to(self.dtype)
        lengths = [torch.norm(each, dim=-1, keepdim=True) for each in (plain, combined)]
        guided: torch.Tensor = combined * (lengths[0] / lengths[1])
        return guided


def _seen(row: DenoiseRow) -> torch.Tensor:
    """Return the tokens of a row that the transformer sees, [N + S, 64]."""
    return row.latents if row.sources is None else torch.cat([row.latents, row.sources.tokens.to(row.latents)])


def _tokens(sizes: Sequence[Size]) -> int:
    return sum(size.tokens for size in sizes)


def _padded(texts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return texts [T, H] as one [B, max T, H] with its mask bool [B, max T], None where all are equally long."""
    lengths = torch.tensor([len(text) for text in texts])
    longest = int(lengths.max())
    if int(lengths.min()) == longest:
        return torch.stack(list(texts)), None
    mask = torch.arange(longest)[None] < lengths[:, None]
    return torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True), mask.to(texts[0].device)


def _size(parameters: _Parameters) -> Size:
    return Size.of({"height": parameters.height, "width": parameters.width})


def _is_guided(prompt: DiffusionPrompt[_Parameters]) -> bool:
    return prompt.parameters.true_cfg_scale > 1 and "negative_prompt_embeds" in prompt.tensors
