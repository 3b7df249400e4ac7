"""``OmniGPUModelRunner``: additional information for AR models, on top of vLLM's model runner, on CPU and GPU.

A charter: only what every AR model needs belongs here, and nothing of one model. A model's own needs stand behind
``workers.runners.ar.model_interface``, vLLM's internals behind ``workers.vllm_hooks.model_runner``.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch

from omni_jobs.errors import ModelError
from workers.runners.ar.model_interface import (
    INFORMATION,
    InformedRows,
    SupportsAdditionalInformation,
    SupportsFeedback,
)
from workers.vllm_hooks.model_runner import AddedRequest, HookedModelRunner


class OmniGPUModelRunner(HookedModelRunner):
    """Gives the model each request's additional information and M-RoPE positions. The base of ``GPUARModelRunner``."""

    def set_up(self) -> None:
        super().set_up()
        self._loaded: dict[str, Any] = {}  # by key: the information of a request that is not in the batch yet
        self._informed: dict[str, Any] = {}  # by request id: the information of a request in the batch
        self.counts = {"requests": 0, "resumed": 0, "cached_tokens": 0}

    # The worker calls these between two steps.

    def load_information(self, key: str, information: Mapping[str, Any], prompt_tokens: int) -> None:
        """Prepare a coming request's information, and keep it under ``key``.

        Raises ModelError naming a wrong field, or when the model takes no information.
        """
        model = self.get_model()
        if not isinstance(model, SupportsAdditionalInformation):
            raise ModelError(f"{type(model).__name__} takes no additional information", field="additional_information")
        if not self.embeds_inputs():
            raise ModelError("its component lacks the engine argument enable_prompt_embeds", field="engine_args")
        self._loaded[key] = model.load_information(information, prompt_tokens)

    def drop_information(self, key: str) -> None:
        """Forget the information of a request that will not come."""
        self._loaded.pop(key, None)

    def stats(self) -> dict[str, int]:
        """Return counts: requests, resumed, cached tokens since the start; requests whose information is held now."""
        return {**self.counts, "informed": len(self._informed), "loaded": len(self._loaded)}

    @property
    def _informed_model(self) -> SupportsAdditionalInformation:
        """The model; only a model of this kind has loaded information."""
        return cast("SupportsAdditionalInformation", self.get_model())

    # Hooks, which vllm_hooks.model_runner calls.

    def request_added(self, request: AddedRequest) -> None:
        self.counts["requests"] += 1
        self.counts["cached_tokens"] += request.cached_tokens
        key = request.options.get(INFORMATION)
        if key is not None and key in self._loaded:
            self._informed[request.request_id] = self._loaded.pop(key)

    def request_resumed(self, request_id: str) -> None:
        self.counts["resumed"] += 1

    def request_removed(self, request_id: str) -> None:
        self._informed.pop(request_id, None)

    def given_positions(self, request_id: str) -> tuple[torch.Tensor, int] | None:
        loaded = self._informed.get(request_id)
        return None if loaded is None else self._informed_model.information_positions(loaded)

    def edit_inputs(self, embeds: torch.Tensor) -> None:
        if step := self._informed_step():
            self._informed_model.embed_information(embeds, step)

    def forward_done(self, output: Any) -> None:
        model = self.get_model() if self._informed else None
        if isinstance(model, SupportsFeedback) and (step := self._informed_step()):
            model.note_outputs(output, step)

    def _informed_step(self) -> list[InformedRows]:
        """Return the rows that the requests with information have in the current step."""
        if not self._informed:
            return []
        return [
            InformedRows(self._informed[rows.request_id], rows.begin, rows.end, rows.position)
            for rows in self.step_rows(self._informed)
        ]
