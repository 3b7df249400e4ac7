"""The oracle: Qwen3-Omni as Transformers runs it, one job at a time, greedy.

Transformers 5.19 has a trap, and the oracle stands beside it: for the positions of audio beside a picture the talker
asks its config for that of the audio encoder, which the thinker's alone has.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.oracles.reference import media_of


@dataclass(frozen=True)
class Qwen3Result:
    """One job's result."""

    prompt_ids: list[int]
    tokens: list[int]  # with the eos, when it ended there
    text: str
    hidden_rows: torch.Tensor  # float32 [P + N - 1, H]: the inputs of the layer that the talker accepts
    embeds: torch.Tensor  # float32 [P + N - 1, H]
    positions: torch.Tensor  # int64 [3, P]
    codes: list[int]  # the talker's own tokens, with the end, when it ended there
    frames: torch.Tensor  # int64 [codes - 1, 16]
    waveform: torch.Tensor  # float32 [samples]


class Qwen3OmniReference:
    """Transformers' model and processor of one checkpoint directory."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

        self.model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.model.talker.config.audio_config = self.model.thinker.config.audio_config
        self.processor: Any = Qwen3OmniMoeProcessor.from_pretrained(checkpoint)
        generation = json.loads((checkpoint / "generation_config.json").read_text(encoding="utf-8"))
        self._eos: int = generation["eos_token_id"]

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The messages through the checkpoint's own chat template."""
        rendered = self.processor.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return str(rendered)

    def inputs(self, messages: Sequence[Mapping[str, Any]], media: Sequence[Any]) -> Any:
        """What the processor makes of the messages."""
        return self.processor(text=[self.prompt(messages)], return_tensors="pt", **media_of(messages, media))

    def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        media: Sequence[Any] = (),
        *,
        voice: str = "Ethan",
        thinker_max_tokens: int = 24,
        talker_max_tokens: int = 24,
        talker_repetition_penalty: float = 1.05,
    ) -> Qwen3Result:
        """Run one job. A thinker that ends with its first token makes Transformers fail."""
        inputs = self.inputs(messages, media)
        thinker, talker = self.model.thinker, self.model.talker
        thinker.rope_deltas = talker.rope_deltas = None
        with _Tap(thinker) as thought, _Tap(talker) as spoken, torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Passing `repetition_penalty`")  # that is what the talker does
            sequences, waveform = self.model.generate(
                **inputs,
                speaker=voice,
                thinker_max_new_tokens=thinker_max_tokens,
                thinker_do_sample=False,
                thinker_eos_token_id=self._eos,
                talker_max_new_tokens=talker_max_tokens,
                talker_do_sample=False,
                talker_repetition_penalty=talker_repetition_penalty,
            )
        prompt = inputs["input_ids"].shape[1]
        tokens = sequences[0, prompt:].tolist()
        layer = self.model.config.talker_config.accept_hidden_layer
        frames = [step[-1] for step in spoken.result.hidden_states if step[-1] is not None]
        return Qwen3Result(
            prompt_ids=sequences[0, :prompt].tolist(),
            tokens=tokens,
            text=str(self.processor.tokenizer.decode(tokens, skip_special_tokens=True)),
            hidden_rows=torch.cat([step[layer] for step in thought.result.hidden_states], dim=1)[0],
            embeds=torch.cat([step[0] for step in thought.result.hidden_states], dim=1)[0],
            positions=self._positions(inputs),
            codes=spoken.result.sequences[0].tolist(),
            frames=torch.cat(frames) if frames else torch.zeros(0, 16, dtype=torch.int64),
            waveform=waveform.reshape(-1),
        )

    def _positions(self, inputs: Any) -> torch.Tensor:
        ids = inputs["input_ids"]
        features = inputs.get("feature_attention_mask")
        grids = {name: inputs.get(name) for name in ("image_grid_thw", "video_grid_thw")}
        if features is None and not any(grid is not None for grid in grids.values()):
            return torch.arange(ids.shape[1]).expand(3, -1)
        positions, _ = self.model.thinker.get_rope_index(
            ids,
            **grids,
            attention_mask=inputs["attention_mask"],
            use_audio_in_video=False,
            audio_seqlens=None if features is None else features.sum(dim=1),
            second_per_grids=inputs.get("video_second_per_grid"),
        )
        return positions[:, 0].to(torch.int64)


class _Tap:
    """Keeps what a part's ``generate`` returns."""

    def __init__(self, part: Any) -> None:
        generate = part.generate

        def kept(*args: Any, **kwargs: Any) -> Any:
            self.result = generate(*args, **kwargs)
            return self.result

        self._patch = mock.patch.object(part, "generate", kept)
        self.result: Any = None

    def __enter__(self) -> _Tap:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()
