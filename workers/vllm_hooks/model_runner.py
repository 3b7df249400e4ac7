"""vLLM's V1 model runner with its private steps turned into a few plain hooks.

``HookedModelRunner`` is the only class that overrides or reads the internals of vLLM's model runner. Our model
runners in workers.runners override the methods under "Hooks" and get plain values. No code of
``execute_model`` is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from vllm.distributed import get_pp_group, get_tensor_model_parallel_rank
from vllm.model_executor.models.interfaces import EagleModelMixin
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from workers.vllm_hooks.hidden_layers import layers_of
from workers.vllm_hooks.seeds import RewindableGenerator

if TYPE_CHECKING:
    from vllm.sequence import IntermediateTensors
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
    from vllm.v1.outputs import SamplerOutput
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
    from vllm.v1.worker.gpu_input_batch import CachedRequestState


@dataclass(frozen=True, slots=True)
class AddedRequest:
    """A request that enters the model runner, as ``HookedModelRunner.request_added`` gets it."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int  # of the prompt, from the prefix cache; the model does not compute them
    options: Mapping[str, Any]  # SamplingParams.extra_args
    media: Sequence[tuple[int, np.ndarray[Any, np.dtype[np.bool_]]]]  # (offset, mask of embeddings)


class StepRows(NamedTuple):
    """The rows ``begin`` … ``end`` of a step's tensors that belong to one request; the first is at its ``position``."""

    request_id: str
    begin: int
    end: int
    position: int


class HookedModelRunner(GPUModelRunner):
    """The base class of our model runners: vLLM's V1 runner with hooks, which do nothing unless overridden.

    ``HookedWorker`` makes vLLM's runner one of ours.
    """

    # Hooks

    def set_up(self) -> None:
        """Set up the state of our class, once vLLM's is."""
        self._gives_more = False  # model_loaded
        self._planned: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = {}  # positions beyond the prompt, by request

    def model_loaded(self) -> bool:
        """Note that the model is loaded; return whether its forward pass gives (last hidden states, what else)."""
        return False

    def request_added(self, request: AddedRequest) -> None:
        """Note a request that is about to enter the batch."""

    def request_resumed(self, request_id: str) -> None:
        """Note that a preempted request is computed anew, except what the prefix cache has."""

    def request_removed(self, request_id: str) -> None:
        """Note that a request has left the batch: it has finished or was aborted."""

    def given_positions(self, request_id: str) -> tuple[torch.Tensor, int] | None:
        """Return a request's M-RoPE positions int64 [3, P + n] on the CPU and delta; None: the model computes them.

        Those behind the prompt's P are of the first n generated tokens, which vLLM would count on from delta.
        """
        return None

    def positions_known(self, request_id: str, positions: torch.Tensor, delta: int) -> None:
        """Note a request's M-RoPE positions int64 [3, P] and delta, given or the model's own, as it enters."""

    def edit_inputs(self, embeds: torch.Tensor) -> None:
        """Edit the step's input embeddings [n, H] in place, before the model runs; called only if ``embeds_inputs``."""

    def before_forward(self, input_ids: torch.Tensor | None, embeds: torch.Tensor | None) -> Any:
        """Return the value that ``after_forward`` gets as ``kept``; None: do not call ``after_forward`` for this step.

        Copy ``embeds`` [n, H] where they are needed, because the model may overwrite them in place.
        """
        return None

    def after_forward(self, output: Any, kept: Any) -> None:
        """Use the model's output of the step; ``kept`` is the value that ``before_forward`` returned.

        ``output``: the last hidden states [n, H], or what ``model_loaded`` has said.
        """

    def forward_done(self, output: Any) -> None:
        """Note the model's output of the step, as ``after_forward`` gets it; called after each step of the engine."""

    # Facts for the hooks

    def step_rows(self, wanted: Container[str]) -> list[StepRows]:
        """Return where the requests whose id is in ``wanted`` have their rows in the current step, in batch order."""
        ids = self.input_batch.req_ids
        edges = self.query_start_loc.np[: len(ids) + 1].tolist()
        computed = self.input_batch.num_computed_tokens_cpu[: len(ids)].tolist()
        rows = zip(ids, edges[:-1], edges[1:], computed, strict=True)
        return [StepRows(*row) for row in rows if row[0] in wanted]

    def hidden_row(self) -> tuple[torch.dtype, int]:
        """Return the dtype of hidden states, and how many numbers those of one position have."""
        dtype: torch.dtype = self.dtype  # type: ignore[assignment]  # vLLM has resolved "auto" by now
        return dtype, int(self.model_config.get_hidden_size())

    def asked_layers(self) -> dict[str, int]:
        """Return the layers whose inputs are to be captured, by the names of their rows."""
        return layers_of(self.vllm_config)

    def give_layers(self, layers: Collection[int]) -> None:
        """Make the model give the inputs of these decoder layers, in their order, beside its last hidden states.

        Layer 0 has the embeddings. Raises ValueError for a model that gives those of no layer.
        """
        model: Any = self.get_model()
        holders = [module for module in model.modules() if isinstance(module, EagleModelMixin)]
        if len(holders) != 1:
            raise ValueError(f"{type(model).__name__} does not give the hidden states of its layers")
        holders[0]._set_aux_hidden_state_layers(tuple(layers))

    def embeds_inputs(self) -> bool:
        """Return whether every step has input embeddings, so that ``edit_inputs`` is called for it."""
        return bool(self.enable_prompt_embeds or self.supports_mm_inputs)

    def holds_output(self) -> bool:
        """Return whether this rank captures hidden states. One does, because all ranks of the last layers have them."""
        return bool(get_pp_group().is_last_rank) and get_tensor_model_parallel_rank() == 0

    def is_pipelined(self) -> bool:
        """Return whether the model's layers are divided among ranks."""
        return int(get_pp_group().world_size) > 1

    def guesses(self) -> bool:
        """Return whether tokens are guessed."""
        return self.speculative_config is not None

    def holds_inputs(self) -> bool:
        """Return whether this rank captures embeddings. It is the one that ``holds_output``, but not in a pipeline."""
        return bool(get_pp_group().is_first_rank) and get_tensor_model_parallel_rank() == 0

    # vLLM's steps, most of them private

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self._gives_more = self.model_loaded()
        if self._gives_more:
            self.use_aux_hidden_state_outputs = True

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id not in self.requests:
                self.request_added(_added(new))
        for request_id in scheduler_output.scheduled_cached_reqs.resumed_req_ids:
            self.request_resumed(request_id)
        correct = super()._update_states(scheduler_output)
        if self.device.type == "cpu":
            for new in scheduler_output.scheduled_new_reqs:
                self._make_rewindable(new.req_id)
        return correct

    def _make_rewindable(self, request_id: str) -> None:
        state = self.requests[request_id]
        if state.generator is not None:
            state.generator = RewindableGenerator.seeded(state.generator.initial_seed())
            self.input_batch.generators[self.input_batch.req_id_to_index[request_id]] = state.generator

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: SpecDecodeMetadata | None) -> SamplerOutput:
        if self.device.type == "cpu":
            for n in np.flatnonzero(self.discard_request_mask.np[: self.input_batch.num_reqs]):
                generator = self.input_batch.generators.get(int(n))
                if isinstance(generator, RewindableGenerator):
                    generator.save()
        return super()._sample(logits, spec_decode_metadata)

    def _on_request_state_removed(self, req_id: str, req_state: CachedRequestState | None) -> None:
        super()._on_request_state_removed(req_id, req_state)
        self._planned.pop(req_id, None)
        self.request_removed(req_id)

    def _init_mrope_positions(self, req_state: CachedRequestState) -> None:
        given = self.given_positions(req_state.req_id)
        if given is None:
            super()._init_mrope_positions(req_state)
        else:
            req_state.mrope_positions, req_state.mrope_position_delta = given
        positions, delta = req_state.mrope_positions, req_state.mrope_position_delta
        if positions is not None and delta is not None:
            prompt_tokens = req_state.num_prompt_tokens
            if positions.shape[1] > prompt_tokens:
                self._planned[req_state.req_id] = positions.numpy()
            self.positions_known(req_state.req_id, positions[:, :prompt_tokens], delta)

    def _calc_mrope_positions(self, scheduler_output: SchedulerOutput) -> None:
        super()._calc_mrope_positions(scheduler_output)
        if not self._planned:
            return
        begin = 0
        for index, request_id in enumerate(self.input_batch.req_ids):
            count = scheduler_output.num_scheduled_tokens[request_id]
            if (planned := self._planned.get(request_id)) is not None:
                computed = self.input_batch.num_computed_tokens_cpu[index]
                step = planned[:, computed : computed + count]
                self.mrope_positions.np[:, begin : begin + step.shape[1]] = step
            begin += count

    def _preprocess(
        self,
        scheduler_output: SchedulerOutput,
        num_input_tokens: int,
        intermediate_tensors: IntermediateTensors | None = None,
    ) -> Any:
        if intermediate_tensors is not None and self.intermediate_tensors is None:
            # vLLM makes it in a run for warming up, which an eager engine on CPUs does without.
            model: Any = self.get_model()
            self.intermediate_tensors = model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.dtype, device=self.device
            )
        inputs = super()._preprocess(scheduler_output, num_input_tokens, intermediate_tensors)
        embeds = inputs[1]
        if embeds is not None:
            self.edit_inputs(embeds)
        return inputs

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        kept = self.before_forward(input_ids, inputs_embeds)
        output = super()._model_forward(input_ids, positions, intermediate_tensors, inputs_embeds, **model_kwargs)
        self.forward_done(output)
        if kept is not None:
            self.after_forward(output, kept)
        # vLLM gives the second of the two to a draft that belongs to the model, whose input is the last hidden states.
        return (output[0], [output[0]]) if self._gives_more else output


def _added(new: NewRequestData) -> AddedRequest:
    """Convert vLLM's request."""
    media = []
    for feature in new.mm_features:
        place = feature.mm_position
        embedded = np.ones(place.length, dtype=np.bool_) if place.is_embed is None else place.is_embed.numpy()
        media.append((place.offset, embedded))
    return AddedRequest(
        request_id=new.req_id,
        prompt_tokens=new.prompt_len,
        cached_tokens=new.num_computed_tokens,
        options=(new.sampling_params.extra_args or {}) if new.sampling_params is not None else {},
        media=media,
    )
