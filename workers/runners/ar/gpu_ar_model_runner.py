"""``GPUARModelRunner``: captures hidden states per request, for the stages that follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from omni_jobs.errors import ModelError
from workers.runners.ar.captures import CAPTURE, CAPTURE_ROWS, Capture, CapturePart, CaptureStore, CopyRing, KeptRows
from workers.runners.ar.engine_settings import OWN_NAMES
from workers.runners.ar.gpu_model_runner import OmniGPUModelRunner
from workers.runners.ar.kept_prefixes import RowsChange
from workers.runners.ar.model_interface import SupportsNamedOutputs, SupportsStepOutputs, check_model_class
from workers.runners.ar.row_layout import HIDDEN_STATES, INPUT_EMBEDS, RowKind, RowLayout
from workers.stages.tensors import is_tensor_tree
from workers.stages.types import TensorTree
from workers.vllm_hooks.model_runner import AddedRequest, StepRows

_CLOSED_PER_SLOT = 4  # how many captures wait to be taken, as a multiple of the requests in a batch


@dataclass(frozen=True, slots=True)
class _CapturedStep:
    """The rows of one step to capture, noted before the model's forward pass."""

    parts: list[CapturePart]
    index: slice | torch.Tensor  # the rows' places on the step's token axis
    added: torch.Tensor | None  # [n, H], to be added: the embeddings, zeroed at media positions; None: nothing is
    inputs: torch.Tensor | None  # [n, H] of layer 0, a copy, because the model may overwrite them; None: not captured


class GPUARModelRunner(OmniGPUModelRunner):
    """Captures the last hidden states of the requests whose sampling options ask for it, for ``GPUARWorker``.

    With ``adds_embeddings`` a row is the last hidden state plus the input embedding, and the embedding is zero at the
    prompt's audio, image and video positions (Transformers: ``Qwen2_5OmniForConditionalGeneration.generate``,
    ``embeds_to_talker``). In a pipeline of ranks the first captures the embeddings, and the last the hidden states.
    """

    adds_embeddings = False  # ``ArComponent.adds_embeddings``; the worker sets it
    # Known once the model is loaded.
    _layout: RowLayout
    _layers: dict[str, int]  # by the names of their rows
    _given: list[int]  # the layers whose inputs the model gives beside its last hidden states

    def set_up(self) -> None:
        super().set_up()
        self.captures = CaptureStore(max_closed=_CLOSED_PER_SLOT * self.max_num_reqs)
        self._kept_rows = KeptRows()
        self._copies = CopyRing(self.max_num_tokens, buffers=0 if self.device.type == "cpu" else 2)
        self.counts |= {"captured_requests": 0, "captured_rows": 0, "captured_steps": 0, "reused_rows": 0}

    def row_bytes(self) -> int:
        """Return the bytes of one row of all kinds; 0 on a rank that captures none."""
        return self._layout.nbytes if self.holds_rows() else 0

    def holds_rows(self) -> bool:
        """Return whether this rank captures."""
        return self.holds_output() or (self.adds_embeddings and self.holds_inputs())

    def names_outputs(self) -> bool:
        """Return whether the model makes outputs of its own of a request's rows."""
        return isinstance(self.get_model(), SupportsNamedOutputs)

    def buffer_bytes(self) -> int:
        """Return the bytes of the pinned buffers through which the rows reach the host; 0 on a CPU."""
        return self._copies.buffer_rows * self.row_bytes()

    def take(self, key: str) -> Capture | None:
        """Return the capture of that key with all its rows on the host, and forget it; None when there is none."""
        self._copies.flush()
        return self.captures.take(key)

    def drop(self, key: str) -> None:
        """Forget the capture of that key, and its rows that are on their way to the host."""
        self._copies.flush()
        self.captures.take(key)

    def reuse_rows(self, capture: Capture, change: RowsChange) -> None:
        """Give a taken capture the rows of earlier ones that it lacks, and keep those that later ones may need."""
        self.counts["reused_rows"] += self._kept_rows.change(capture, change)

    def outputs_of(self, capture: Capture, rows: int) -> dict[str, TensorTree]:
        """Return the first ``rows`` of a taken capture by their kinds, and the model's named outputs.

        The first rank of a pipeline has ``INPUT_EMBEDS`` alone; a capture without rows has nothing. Raises the model's
        ModelError, and one naming an output that has a name of the runner's own or of a kind of rows, or that is not
        made of tensors.
        """
        if capture.rows is None:
            return {}
        kinds = self._layout.unpack(capture.rows[:rows], capture.prompt_tokens)
        if not self.holds_output():
            return dict(kinds)
        model = self.get_model()
        states = kinds[HIDDEN_STATES]
        named = model.named_outputs(states, capture.prompt_tokens) if isinstance(model, SupportsNamedOutputs) else {}
        for name, output in named.items():
            if name in OWN_NAMES or name in kinds:
                raise ModelError("the runner's own output has this name", field=name)
            if not is_tensor_tree(output):
                raise ModelError(f"{type(output).__name__} where a tensor, a list or a dict of them is due", field=name)
        return {**named, **kinds}

    def stats(self) -> dict[str, int]:
        return {
            **super().stats(),
            "host_copies": self._copies.copies,
            "held_captures": self.captures.held,
            "held_bytes": self.captures.held_bytes,
            "kept_blocks": len(self._kept_rows),
        }

    # Hooks, which vllm_hooks.model_runner calls.

    def model_loaded(self) -> bool:
        model = self.get_model()
        self._layers = self.asked_layers()
        check_model_class(
            type(model), layers=bool(self._layers), is_pipelined=self.is_pipelined(), guesses=self.guesses()
        )
        self._given = sorted({*self._layers.values()} - {0})
        if self._given:
            self.give_layers(self._given)
        self._layout = RowLayout(self._kinds())
        return bool(self._given) or isinstance(model, SupportsStepOutputs)

    def _kinds(self) -> list[RowKind]:
        """Return the kinds of rows that this rank captures. Raises ValueError for a name of the runner's own."""
        model = self.get_model()
        dtype, width = self.hidden_row()
        if not self.holds_output():
            return [RowKind(INPUT_EMBEDS, dtype, (width,))]
        given = model.step_outputs() if isinstance(model, SupportsStepOutputs) else ()
        others = [*(RowKind(name, dtype, (width,)) for name in self._layers), *given]
        if taken := sorted(OWN_NAMES.intersection(kind.name for kind in others)):
            raise ValueError(f"{type(model).__name__} gives rows of {taken[0]}, a name of the runner's own")
        return [RowKind(HIDDEN_STATES, dtype, (width,)), *others]

    def request_added(self, request: AddedRequest) -> None:
        super().request_added(request)
        key = request.options.get(CAPTURE)
        if key is None or not self.holds_rows():
            return
        zeroed = np.zeros(request.prompt_tokens, dtype=np.bool_)
        for offset, embedded in request.media:
            zeroed[offset : offset + len(embedded)] |= embedded
        self.captures.open(
            request.request_id, Capture(key, request.prompt_tokens, zeroed, request.options[CAPTURE_ROWS])
        )
        self.counts["captured_requests"] += 1

    def positions_known(self, request_id: str, positions: torch.Tensor, delta: int) -> None:
        if request_id in self.captures:
            capture = self.captures[request_id]
            capture.positions, capture.delta = positions, delta

    def request_removed(self, request_id: str) -> None:
        super().request_removed(request_id)
        self.captures.close(request_id)

    def before_forward(self, input_ids: torch.Tensor | None, embeds: torch.Tensor | None) -> _CapturedStep | None:
        if not self.captures:
            return None
        rows = self.step_rows(self.captures)
        if not rows:
            return None
        parts = self._parts(rows)
        index = _index(rows, self.device)
        keeps_inputs = 0 in self._layers.values()
        if not self.holds_inputs() or not (self.adds_embeddings or keeps_inputs):
            return _CapturedStep(parts, index, None, None)
        if embeds is None:  # a model without media embeds its tokens itself
            model: Any = self.get_model()
            embeds = model.embed_input_ids(input_ids)
        inputs = embeds[index]
        added = _without_media(parts, inputs) if self.adds_embeddings else None
        return _CapturedStep(parts, index, added, inputs.clone() if keeps_inputs else None)

    def _parts(self, rows: list[StepRows]) -> list[CapturePart]:
        parts = []
        done = 0
        for request_id, begin, end, position in rows:
            count = end - begin
            parts.append((self.captures[request_id], position, done, done + count))
            done += count
        return parts

    def after_forward(self, output: Any, step: _CapturedStep) -> None:
        rows = self._rows(output, step)
        self._copies.push(self._layout.pack(rows), step.parts)
        self.counts["captured_rows"] += step.parts[-1][-1]
        self.counts["captured_steps"] += 1

    def _rows(self, output: Any, step: _CapturedStep) -> dict[str, torch.Tensor]:
        """Return the step's rows by kind; ``output``: the model's, which only the last rank of a pipeline has."""
        if not self.holds_output():
            return {} if step.added is None else {INPUT_EMBEDS: step.added}
        hidden, others = self._split(output)
        states = hidden[step.index]
        rows = {name: each[step.index] for name, each in others.items()}
        rows |= {name: step.inputs for name, layer in self._layers.items() if layer == 0 and step.inputs is not None}
        rows[HIDDEN_STATES] = states if step.added is None else step.added.add_(states)
        return rows

    def _split(self, output: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the last hidden states [n, H] of the model's output, and what else it holds, by the names of kinds."""
        model = self.get_model()
        if isinstance(model, SupportsStepOutputs):
            return model.extract_multimodal_outputs(output)
        if not self._given:
            return output, {}
        hidden, inputs = output
        by_layer = dict(zip(self._given, inputs, strict=True))
        return hidden, {name: by_layer[layer] for name, layer in self._layers.items() if layer in by_layer}


def _without_media(parts: Sequence[CapturePart], embeds: torch.Tensor) -> torch.Tensor:
    """Return a copy of the rows' embeddings [n, H], zeroed at media positions."""
    zeroed = np.zeros(len(embeds), dtype=np.bool_)
    for capture, position, begin, end in parts:
        if position < capture.zeroed_end:
            of_prompt = capture.zeroed[position : position + end - begin]
            zeroed[begin : begin + len(of_prompt)] = of_prompt
    if not zeroed.any():
        return embeds.clone()
    return embeds.masked_fill(_to_device(zeroed, embeds.device)[:, None], 0)


def _index(rows: list[StepRows], device: torch.device) -> slice | torch.Tensor:
    """Return the rows' places on the step's token axis: a slice if they lie together, else their numbers on the device.

    They lie together when every request is captured.
    """
    if all(left.end == right.begin for left, right in pairwise(rows)):
        return slice(rows[0].begin, rows[-1].end)
    return _to_device(np.concatenate([np.arange(part.begin, part.end) for part in rows]), device)


def _to_device(array: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
