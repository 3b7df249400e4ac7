"""The oracle: Qwen2.5-Omni as Transformers runs it, one job at a time, greedy.

Transformers 5.19 has two traps, and the oracle stands beside both:

1. ``generate`` drops an attention mask of ones. Its talker takes a missing mask as
   "no first step": it then adds no codec BOS and PAD embedding and makes no M-RoPE
   positions, so a batch of one gives wrong codes. ``MASK_GIVEN_BACK`` puts the mask
   back into the talker's forward; ``BATCH_OF_TWO`` adds a shorter, left-padded
   companion, so that the mask is not all ones. ``NAIVE`` walks into the trap.
2. Pictures reach the talker's ``generate``, which refuses them, unless they are
   passed for the thinker alone (``thinker_pixel_values``).

``dit.sample`` draws its noise with ``torch.randn``; the oracle gives it the noise of
the job's seed instead, as the workers do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

import torch

SAMPLING_RATE_IN = 16_000


class Way(Enum):
    """How the first trap is met."""

    MASK_GIVEN_BACK = "mask given back"
    BATCH_OF_TWO = "batch of two"
    NAIVE = "naive"


@dataclass(frozen=True)
class ReferenceResult:
    """One job's result; what only speech needs is None for text alone."""

    prompt_ids: list[int]
    thinker_tokens: list[int]  # with the eos, when it ended there
    text: str
    hidden_rows: torch.Tensor | None = None  # float32 [P + N - 1, H], what the talker is fed
    talker_codes: list[int] | None = None  # with the eos, when it ended there
    waveform: torch.Tensor | None = None  # float32 [S]


class Reference:
    """Transformers' model and processor of one checkpoint directory."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

        self.model = Qwen2_5OmniForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.processor = Qwen2_5OmniProcessor.from_pretrained(checkpoint)
        generation = json.loads((checkpoint / "generation_config.json").read_text(encoding="utf-8"))
        eos = generation["eos_token_id"]
        self._thinker_eos: list[int] = [eos] if isinstance(eos, int) else list(eos)
        talker = self.model.talker
        self._codec_eos = [talker.codec_pad_token, talker.codec_eos_token]

    def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        media: Sequence[Any] = (),
        *,
        modalities: Sequence[str] = ("text", "audio"),
        voice: str = "Chelsie",
        thinker_max_tokens: int = 24,
        talker_max_tokens: int = 48,
        talker_repetition_penalty: float = 1.05,
        seed: int = 0,
        way: Way = Way.MASK_GIVEN_BACK,
    ) -> ReferenceResult:
        """Run one job.

        ``messages`` are a request's, with media parts ``{"type": "audio", "media": n}``;
        ``media[n]`` is the encoded bytes, or already what ``omni_jobs.media`` decodes them to.
        A thinker that ends with its first token makes Transformers fail, so choose another prompt.
        """
        inputs = self._inputs(messages, media, way)
        prompt_ids = inputs["input_ids"][0].tolist()
        if "audio" not in modalities:
            with torch.no_grad():
                sequences = self.model.generate(
                    **inputs,
                    generation_mode="text",
                    speaker=voice,
                    thinker_max_new_tokens=thinker_max_tokens,
                    thinker_do_sample=False,
                    thinker_eos_token_id=self._thinker_eos,
                )
            tokens = _until(sequences[0, len(prompt_ids) :].tolist(), self._thinker_eos)
            return ReferenceResult(prompt_ids, tokens, self._decode(tokens))

        with _Tap(self.model, seed, give_mask_back=way is Way.MASK_GIVEN_BACK) as tap, torch.no_grad():
            sequences, waveforms = self.model.generate(
                **inputs,
                speaker=voice,
                thinker_max_new_tokens=thinker_max_tokens,
                thinker_do_sample=False,
                thinker_eos_token_id=self._thinker_eos,
                talker_max_new_tokens=talker_max_tokens,
                talker_do_sample=False,
                talker_repetition_penalty=talker_repetition_penalty,
                talker_eos_token_id=self._codec_eos,
            )
        tokens = _until(sequences[0, len(prompt_ids) :].tolist(), self._thinker_eos)
        return ReferenceResult(
            prompt_ids=prompt_ids,
            thinker_tokens=tokens,
            text=self._decode(tokens),
            hidden_rows=tap.hidden_rows(len(prompt_ids), len(tokens)),
            talker_codes=_until(tap.talker_sequences[0, len(prompt_ids) + 2 :].tolist(), self._codec_eos),
            waveform=waveforms if torch.is_tensor(waveforms) else waveforms[0],
        )

    def layers(
        self, messages: Sequence[Mapping[str, Any]], media: Sequence[Any], tokens: Sequence[int]
    ) -> list[torch.Tensor]:
        """The thinker's hidden states float32 [P + N - 1, H] before each layer, of a reply of these N tokens."""
        inputs = self._inputs(messages, media, Way.MASK_GIVEN_BACK)
        inputs = {name.removeprefix("thinker_"): value for name, value in inputs.items()}
        ids = torch.cat([inputs["input_ids"], torch.tensor([tokens[:-1]], dtype=torch.int64)], dim=1)
        with torch.no_grad():
            found = self.model.thinker(
                **{**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}, output_hidden_states=True
            )
        return [each[0] for each in found.hidden_states[:-1]]

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The messages through the checkpoint's own chat template."""
        rendered = self.processor.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return str(rendered)

    def _inputs(self, messages: Sequence[Mapping[str, Any]], media: Sequence[Any], way: Way) -> dict[str, Any]:
        texts = [self.prompt(messages)]
        if way is Way.BATCH_OF_TWO:
            texts.append("<|im_start|>user\n.")  # shorter than any prompt with a system message
        inputs = self.processor(text=texts, padding=True, return_tensors="pt", **media_of(messages, media))
        # The second trap: these two are for the thinker alone.
        renamed = {name: f"thinker_{name}" for name in ("pixel_values", "pixel_values_videos")}
        return {renamed.get(name, name): value for name, value in inputs.items()}

    def _decode(self, tokens: list[int]) -> str:
        return str(self.processor.tokenizer.decode(tokens, skip_special_tokens=True))


def media_of(messages: Sequence[Mapping[str, Any]], media: Sequence[Any]) -> dict[str, Any]:
    audio, images, videos = [], [], []
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "audio":
                audio.append(_decoded("audio", media[part["media"]]))
            elif part["type"] == "image":
                images.append(_decoded("image", media[part["media"]]))
            elif part["type"] == "video":
                videos.append(_decoded("video", media[part["media"]]))
    found = {"audio": audio, "images": images, "videos": videos}
    return {name: items for name, items in found.items() if items}


def _decoded(kind: str, item: Any) -> Any:
    if not isinstance(item, bytes | bytearray | memoryview):
        return item[0] if isinstance(item, tuple) else item  # a video without its metadata
    from omni_jobs.media.audio import decode_audio
    from omni_jobs.media.image import decode_image
    from omni_jobs.media.media_limits import MediaLimits
    from omni_jobs.media.video import decode_video
    from omni_jobs.settings import Settings

    limits = MediaLimits.of(Settings())
    if kind == "audio":
        return decode_audio(item, SAMPLING_RATE_IN, limits)
    if kind == "image":
        return decode_image(item, limits)
    frames, _ = decode_video(item, limits)
    return frames


def _until(tokens: list[int], stops: Sequence[int]) -> list[int]:
    """The tokens up to the first stop, which is kept: a batch pads what follows."""
    for n, token in enumerate(tokens):
        if token in stops:
            return tokens[: n + 1]
    return tokens


class _Tap:
    """Listens between the three parts of the model during one ``generate``."""

    def __init__(self, model: Any, seed: int, *, give_mask_back: bool) -> None:
        self._model = model
        self._seed = seed
        self._give_mask_back = give_mask_back
        self._prompt_part = torch.empty(0)
        self._reply_part = torch.empty(0)
        self.talker_sequences = torch.empty(0, dtype=torch.int64)

    def hidden_rows(self, prompt: int, generated: int) -> torch.Tensor:
        """[P + N - 1, H]: the rows of the prompt, then of the reply but its last token."""
        first_reply = self._prompt_part[0, prompt + 1 : prompt + 2]  # after the speaker's token
        rows = torch.cat([self._prompt_part[0, :prompt], first_reply, self._reply_part[0, : generated - 2]])
        return rows[: prompt + generated - 1]

    def __enter__(self) -> _Tap:
        talker, token2wav = self._model.talker, self._model.token2wav
        talker_generate, token2wav_forward = talker.generate, token2wav.forward

        def generate(*args: Any, **kwargs: Any) -> Any:
            self._prompt_part = kwargs["inputs_embeds"].clone()
            self._reply_part = kwargs["thinker_reply_part"].clone()
            self.talker_sequences = talker_generate(*args, **kwargs)
            return self.talker_sequences

        def forward(*args: Any, **kwargs: Any) -> Any:
            with seeded_randn(self._seed):
                return token2wav_forward(*args, **kwargs)

        self._patches = [
            mock.patch.object(talker, "generate", generate),
            mock.patch.object(token2wav, "forward", forward),
        ]
        for patch in self._patches:
            patch.start()
        self._hook = None
        if self._give_mask_back:
            self._hook = talker.register_forward_pre_hook(_give_mask_back, with_kwargs=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._hook is not None:
            self._hook.remove()
        for patch in self._patches:
            patch.stop()


def _give_mask_back(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if kwargs.get("attention_mask") is None:
        new = kwargs["inputs_embeds"] if kwargs.get("inputs_embeds") is not None else kwargs["input_ids"]
        cache = kwargs.get("past_key_values")
        past = 0 if cache is None else cache.get_seq_length()
        kwargs["attention_mask"] = torch.ones(new.shape[0], past + new.shape[1], dtype=torch.int64)
    return args, kwargs


@contextmanager
def seeded_randn(seed: int) -> Iterator[None]:
    generator = torch.Generator().manual_seed(seed)
    randn = torch.randn

    def seeded(*size: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return randn(*size, generator=generator, **kwargs).to(device=device, dtype=dtype)

    with mock.patch("torch.randn", seeded):
        yield
