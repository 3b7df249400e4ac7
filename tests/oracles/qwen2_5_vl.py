"""The oracle: Qwen2.5-VL as Transformers runs it, one prompt at a time, greedy.

Transformers 5.19 has a trap, and the oracle stands beside it: the text behind a video has the positions that would be
next if the video were a picture, so a long video's later frames share theirs with that text. Until 4.57, and in vLLM,
text goes on behind the highest position of all (``test_qwen2_5_vl_reference`` shows the trap).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import torch


@dataclass(frozen=True)
class VlResult:
    """One prompt's result."""

    prompt_ids: list[int]
    tokens: list[int]  # with the eos, when it ended there
    text: str
    hidden_rows: torch.Tensor  # float32 [P + N - 1, H]: the last hidden states
    positions: torch.Tensor  # int64 [3, P]


class QwenVlReference:
    """Transformers' model and processor of one checkpoint directory. ``mends``: whether it stands beside the trap."""

    def __init__(self, checkpoint: Path, *, mends: bool = True) -> None:
        from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

        self.model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.processor: Any = Qwen2_5_VLProcessor.from_pretrained(checkpoint)
        self._mends = mends

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The messages through the checkpoint's own chat template."""
        rendered = self.processor.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return str(rendered)

    def inputs(self, messages: Sequence[Mapping[str, Any]], media: Mapping[str, Sequence[Any]]) -> Any:
        """What the processor makes of the messages, with media as vLLM takes them."""
        videos = media.get("video", ())
        given = {
            "images": list(media.get("image", ())),
            "videos": [frames for frames, _ in videos],
            "video_metadata": [
                {name: value for name, value in metadata.items() if name != "do_sample_frames"}
                for _, metadata in videos
            ],
        }
        given = {name: items for name, items in given.items() if items}
        return self.processor(text=[self.prompt(messages)], return_tensors="pt", **given)

    def generate(
        self, messages: Sequence[Mapping[str, Any]], media: Mapping[str, Sequence[Any]], max_tokens: int
    ) -> VlResult:
        """Run one prompt."""
        inputs, core = self.inputs(messages, media), self.model.model
        seen: list[torch.Tensor] = []
        rope_index = core.get_rope_index

        def get_rope_index(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            positions, delta = rope_index(*args, **kwargs)
            if self._mends:
                positions, delta = _continued(positions, kwargs["mm_token_type_ids"])
            seen.append(positions[:, 0])
            return positions, delta

        with mock.patch.object(core, "get_rope_index", get_rope_index), torch.no_grad():
            core.rope_deltas = None
            sequence = self.model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
            prompt = inputs["input_ids"].shape[1]
            positions = seen[-1] if seen else torch.arange(prompt).expand(3, prompt)
            hidden = self._hidden_rows(inputs, sequence[:, :-1])
        tokens = sequence[0, prompt:].tolist()
        text = self.processor.tokenizer.decode(tokens, skip_special_tokens=True)
        return VlResult(sequence[0, :prompt].tolist(), tokens, text, hidden, positions)

    def _hidden_rows(self, inputs: Any, ids: torch.Tensor) -> torch.Tensor:
        """The last hidden states of the prompt and the reply, in one pass."""
        core = self.model.model
        core.rope_deltas = None
        types = inputs["mm_token_type_ids"]
        more = torch.zeros(1, ids.shape[1] - types.shape[1], dtype=types.dtype)
        longer = {"mm_token_type_ids": torch.cat([types, more], dim=1), "attention_mask": torch.ones_like(ids)}
        rows: torch.Tensor = core(**{**inputs, **longer, "input_ids": ids}).last_hidden_state[0]
        return rows


def _continued(positions: torch.Tensor, types: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions int64 [3, 1, T] and their delta [1, 1] in which each stretch begins behind all before it."""
    fixed, begin = positions.clone(), 0
    for _, group in groupby(range(types.shape[1]), lambda place: int(types[0, place])):
        places = list(group)
        stretch = fixed[:, 0, places[0] : places[-1] + 1]
        stretch += begin - int(stretch[0, 0])
        begin = int(stretch.max()) + 1
    return fixed, torch.tensor([[begin - types.shape[1]]])
