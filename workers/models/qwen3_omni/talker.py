"""Qwen3-Omni's talker as a vLLM model: frames of sixteen codes from the thinker's rows.

Source of the formulas: Transformers' ``Qwen3OmniMoeTalkerForConditionalGeneration``. vLLM samples the first code of a
frame. Before the next step the code predictor finds the other fifteen of that code and of the hidden states that it
was sampled from. The input at position p, of frame t = p - P, is

    prompt[p]                                                                  p < P
    codec_embed(first code) + sum(embed_k(code k)) + text[min(t, last)]        p >= P

where ``prompt`` and ``text`` are made of the request's information once. Beyond the reply's end ``text`` is the
embedding of padding. A frame is predicted once: after preemption its codes are taken from the request's information.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from omni_jobs.errors import ModelError
from workers.models.qwen3_omni.code_predictor import CodeChoice, CodePredictor
from workers.models.qwen3_omni.talker_prompt import RESIDUAL_CODES, ROLE_TOKENS, TALKER_TAIL
from workers.models.talkers.informed_talker import (
    DYNAMIC_DIMS,
    InformedTalker,
    positions_of,
    rows_of,
    tensor_of,
    weights_of_talker,
)
from workers.runners.ar.model_interface import InformedRows
from workers.runners.ar.row_layout import RowKind

N = TypeVar("N", int, float)

_SPECIAL_TOKENS = 1024  # at the end of the vocabulary: none but the end is ever sampled


@dataclass(slots=True, eq=False)
class _Speech:
    """One request's loaded information on the model's device, and what it has said so far."""

    prompt: torch.Tensor  # [P, H]
    text: torch.Tensor  # [T, H]; the last row is that of padding
    positions: torch.Tensor  # int64 [3, P]
    delta: int
    choice: CodeChoice
    frames: list[torch.Tensor] = field(default_factory=list)  # int64 [15] each
    hidden: torch.Tensor | None = None  # [H], the last hidden states of the position ``hidden_at``
    hidden_at: int = -1


@dataclass(frozen=True, slots=True)
class _NewFrame:
    """A row of a step whose frame is to be predicted, and the speech that it belongs to."""

    speech: _Speech
    row: int


@support_torch_compile(dynamic_arg_dims=DYNAMIC_DIMS)
class Qwen3OmniTalkerModel(Qwen3MoeModel):
    """The talker's layers: Qwen3-MoE's with a shared expert, and M-RoPE."""


class _Projection(nn.Module):
    """Two linear layers from the thinker's hidden size to the talker's, under the checkpoint's names."""

    def __init__(self, thinker_hidden: int, inner: int, hidden: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(thinker_hidden, inner)
        self.linear_fc2 = nn.Linear(inner, hidden)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.linear_fc2(nn.functional.silu(self.linear_fc1(rows)))
        return projected


class Qwen3OmniTalkerForConditionalGeneration(nn.Module, InformedTalker):
    """The talker as vLLM's model class. It implements three protocols of ``workers.runners.ar.model_interface``:
    ``SupportsAdditionalInformation``, ``SupportsFeedback`` and ``SupportsStepOutputs``.

    A request's information is that of ``workers.models.qwen3_omni.talker_prompt``.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        whole: Any = vllm_config.model_config.hf_config
        self.config = whole
        text = whole.text_config
        self.model = Qwen3OmniTalkerModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(text.vocab_size, text.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))
        self.logits_processor = LogitsProcessor(text.vocab_size)
        self.make_empty_intermediate_tensors = self.model.make_empty_intermediate_tensors
        sizes = whole.thinker_hidden_size, text.intermediate_size, text.hidden_size
        self.text_projection, self.hidden_projection = _Projection(*sizes), _Projection(*sizes)
        self.code_predictor = CodePredictor(whole.code_predictor_config)
        self._max_model_len: int = vllm_config.model_config.max_model_len
        special = torch.arange(text.vocab_size) >= text.vocab_size - _SPECIAL_TOKENS
        special[whole.codec_eos_token_id] = False
        self.register_buffer("_unsampled", special, persistent=False)
        # Each position's further codes stand here for the whole step, so that vLLM's graphs can hand them on.
        codes = torch.zeros(vllm_config.scheduler_config.max_num_batched_tokens, self.code_predictor.codes)
        self.register_buffer("_codes", codes.to(torch.int64), persistent=False)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [n, H] of first codes."""
        return self.model.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last hidden states [n, H] and the further codes int64 [n, 15] that are in the inputs."""
        hidden: Any = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)
        codes: Any = self._codes
        return hidden, codes[: len(hidden)]

    # Additional information

    @torch.inference_mode()
    def load_information(self, information: Mapping[str, Any], prompt_tokens: int) -> _Speech:
        """Check one request's information and make its inputs of it. Raise ModelError naming a field that is wrong."""
        user, reply, tts = (self._rows(information, name) for name in ("user", "reply", "tts"))
        if len(user) + TALKER_TAIL != prompt_tokens:
            raise ModelError(f"{len(user)} rows for a prompt of {prompt_tokens} tokens", field="user")
        if len(reply) < ROLE_TOKENS:
            raise ModelError(f"{len(reply)} rows, and {ROLE_TOKENS} are due at least", field="reply")
        if len(tts) != 3:
            raise ModelError(f"{len(tts)} rows where 3 are due", field="tts")
        media = tensor_of(information, "media")
        if (
            media.dtype != torch.int64
            or media.ndim != 1
            or (len(media) and not 0 <= int(media.min()) <= int(media.max()) < len(user))
        ):
            raise ModelError(f"places of media that are not int64 [n] in 0 … {len(user) - 1}", field="media")
        positions, delta = positions_of(
            information, prompt_tokens, self._max_model_len, self.config.text_config.max_position_embeddings
        )
        speaker = information.get("speaker")
        if not isinstance(speaker, int) or not 0 <= speaker < self.config.text_config.vocab_size:
            raise ModelError(f"{speaker!r} is no token of the talker", field="speaker")
        prompt, text = self._inputs(user, media, reply, tts, speaker)
        return _Speech(prompt, text, positions, delta, _choice(information))

    def _rows(self, information: Mapping[str, Any], name: str) -> torch.Tensor:
        """Return rows of the thinker [n, its hidden size] on the model's device. Raise ModelError."""
        rows = rows_of(information, name, self.config.thinker_hidden_size)
        weight = self.text_projection.linear_fc1.weight
        return rows.to(weight.device, weight.dtype)

    def _inputs(
        self, user: torch.Tensor, media: torch.Tensor, reply: torch.Tensor, tts: torch.Tensor, speaker: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the prompt's inputs [P, H] and the text [T, H] that is added to those of the frames."""
        said = self.text_projection(user)
        media = media.to(user.device)
        said[media] = self.hidden_projection(user[media])
        begin, end, padding = self.text_projection(tts).split(1)
        role, words = self.text_projection(reply).tensor_split([ROLE_TOKENS])
        words = torch.cat([words, end])  # the first word is in the prompt; without any word the end is
        config = self.config
        tail = torch.cat([role, padding.expand(4, -1), begin, words[:1]])
        codec = [config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id, speaker]
        ids = torch.tensor([*codec, config.codec_pad_id, config.codec_bos_id], device=user.device)
        tail[ROLE_TOKENS:] += self.embed_input_ids(ids)
        return torch.cat([said, tail]), torch.cat([words[1:], padding])

    @torch.inference_mode()
    def embed_information(self, embeds: torch.Tensor, step: Sequence[InformedRows]) -> None:
        """Write the inputs of prompts, and add to the embeddings of first codes what belongs to their frames."""
        new = []
        for rows in step:
            speech: _Speech = rows.information
            prompt = len(speech.prompt)
            first = rows.begin + max(0, min(rows.end - rows.begin, prompt - rows.position))
            embeds[rows.begin : first] = speech.prompt[rows.position : rows.position + first - rows.begin]
            frame = rows.position + first - rows.begin - prompt  # of the row ``first``
            known = min(rows.end, first + len(speech.frames) - frame)
            if known > first:
                self._add(embeds, slice(first, known), torch.stack(speech.frames[frame : frame + known - first]))
                embeds[first:known] += _text(speech, frame, known - first)
            if known < rows.end:
                _check_new(speech, rows, known)
                new.append(_NewFrame(speech, known))
        if new:
            self._predict(embeds, new)

    def _predict(self, embeds: torch.Tensor, new: Sequence[_NewFrame]) -> None:
        """Predict one frame of each request, and make the inputs of its row."""
        places = torch.tensor([each.row for each in new], device=embeds.device)
        frames = [len(each.speech.frames) for each in new]
        hidden = torch.stack([each.speech.hidden for each in new if each.speech.hidden is not None])
        codes = self.code_predictor.predict(hidden, embeds[places], [each.speech.choice for each in new], frames)
        self._add(embeds, places, codes)
        embeds[places] += torch.cat([_text(each.speech, frame, 1) for each, frame in zip(new, frames, strict=True)])
        for each, row in zip(new, codes, strict=True):
            each.speech.frames.append(row)

    def _add(self, embeds: torch.Tensor, places: slice | torch.Tensor, codes: torch.Tensor) -> None:
        """Add the embeddings of further codes [n, 15] to these rows, and note the codes for ``forward``."""
        embeds[places] += self.code_predictor.embed(codes)
        noted: Any = self._codes
        noted[places] = codes

    def note_outputs(self, output: tuple[torch.Tensor, torch.Tensor], step: Sequence[InformedRows]) -> None:
        """Keep the last hidden states of each request's last position, of which its next first code is sampled."""
        last = output[0][[rows.end - 1 for rows in step]]
        for rows, hidden in zip(step, last, strict=True):
            speech: _Speech = rows.information
            position = rows.position + rows.end - rows.begin - 1
            if position >= speech.hidden_at:
                speech.hidden, speech.hidden_at = hidden, position

    # Outputs and weights

    def step_outputs(self) -> list[RowKind]:
        """Return the kind of the further codes [15]; the first row is that of the prompt's end and means nothing."""
        return [RowKind(RESIDUAL_CODES, torch.int64, (self.code_predictor.codes,), of_prompt=False)]

    def extract_multimodal_outputs(
        self, hidden_states: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the last hidden states [n, H], and the further codes by their name."""
        hidden, codes = hidden_states
        return hidden, {RESIDUAL_CODES: codes}

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Return the logits, special tokens but the end at -inf; None when this rank has none."""
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        unsampled: Any = self._unsampled
        return None if logits is None else logits.masked_fill_(unsampled, float("-inf"))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the talker's part of a whole checkpoint's ``weights``; return the names of those loaded."""
        mapper = WeightsMapper(
            orig_to_new_prefix={"codec_head.": "lm_head.", "model.codec_embedding.": "model.embed_tokens."}
        )
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights_of_talker(weights), mapper=mapper)
        return loaded


def _text(speech: _Speech, frame: int, count: int) -> torch.Tensor:
    """Return the text's rows [count, H] from a frame on; beyond its end the last repeats."""
    last = len(speech.text) - 1
    return speech.text[[min(number, last) for number in range(frame, frame + count)]]


def _check_new(speech: _Speech, rows: InformedRows, known: int) -> None:
    """Raise RuntimeError for a frame whose hidden states are not known: vLLM never schedules one."""
    position = rows.position + known - rows.begin
    if known + 1 != rows.end or speech.hidden_at != position - 1:
        raise RuntimeError(f"the hidden states before position {position} are not known")


def _choice(information: Mapping[str, Any]) -> CodeChoice:
    """Return how the further codes are chosen. Raise ModelError."""
    temperature = _number(information, "residual_temperature", float)
    if temperature < 0:
        raise ModelError(f"{temperature!r} is no temperature", field="residual_temperature")
    return CodeChoice(
        temperature,
        _number(information, "residual_top_k", int),
        _number(information, "residual_top_p", float),
        _number(information, "seed", int),
    )


def _number(information: Mapping[str, Any], name: str, kind: type[N]) -> N:
    """Return a number of the information. Raise ModelError when it is missing or of another kind."""
    found = information.get(name)
    if not isinstance(found, int if kind is int else (int, float)):
        raise ModelError(f"{found!r:.40} where a number is due", field=name)
    return kind(found)
