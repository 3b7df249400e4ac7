"""``ChatProcessor`` and ``EmbedsProcessor``: a job's messages and media, or embeddings, become an AR stage's prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from omni_jobs.errors import ModelError, PayloadCorrupt
from omni_jobs.payloads import PromptEmbedsPayload
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.messages import parts_of
from omni_jobs.prompts.renderers import PromptRenderer, load_renderer
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt, PromptSpan
from workers.runners.ar.tool_use import ToolUse
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.flow_processor import FlowProcessor
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput

AUDIO_SAMPLING_RATE = 16_000  # Hz, Whisper's


class ChatProcessor:
    """Renders a job's messages with the checkpoint's chat template and decodes their media, or passes embeddings on.

    Its name in a stage config is ``chat``.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the prompt renderer of the checkpoint. Raises ConfigError when there is no model or renderer."""
        model = needed_model(model, stage)
        self._renderer = load_renderer(model.family, model.path)

    def __call__(self, stage_input: StageInput[ArParameters]) -> OmniTextPrompt | OmniTokensPrompt:
        """Return the request's embeddings, token ids if the renderer makes them, or rendered text with decoded media.

        Raises InvalidRequest or RequestTooLarge naming the medium that does not decode, DecodersUnavailable,
        ConfigError for media without a wall, and PayloadError for embeddings that do not decode. The runner refuses
        those of another width than the model's.
        """
        if "prompt_embeds" in stage_input.request:
            return self._embedded(stage_input)
        token_ids = self._renderer.encode(stage_input.request)
        if token_ids is not None:
            return _prompt(stage_input, token_ids)
        data: dict[str, list[Any]] = {}
        for field, part in parts_of(stage_input.request):
            data.setdefault(part["type"], []).append(_decoded(stage_input, part, field))
        return OmniTextPrompt(
            prompt=self._renderer.render(stage_input.request),
            multi_modal_data=data,
            parameters=stage_input.parameters,
            seed=stage_input.seed,
            capture=stage_input.capture,
            tools=ToolUse.of(stage_input.request),
        )

    def _embedded(self, stage_input: StageInput[ArParameters]) -> OmniTokensPrompt:
        data = stage_input.media[stage_input.request["prompt_embeds"]["media"]]
        return _prompt(stage_input, embeds=to_torch(PromptEmbedsPayload.decode(data, len(data)).embeds))


class EmbedsProcessor(FlowProcessor):
    """Makes the prompt of an AR stage from a payload of the flow ``embeds``. Its name in a stage config is ``embeds``.

    The rows are the whole prompt. If the payload says by ``prompt_start`` where they begin, the prompt is that of the
    job's messages, and they stand there in place of its tokens. A job of prompt embeddings comes to the first stage in
    its request instead, which is ``chat``'s affair.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load nothing yet. Raises ConfigError when there is no model."""
        super().__init__(stage, model)
        self._model = needed_model(model, stage)

    @cached_property
    def _renderer(self) -> PromptRenderer:
        """The prompt renderer of the checkpoint, which only rows within a prompt need."""
        return load_renderer(self._model.family, self._model.path)

    def __call__(self, stage_input: StageInput[ArParameters]) -> OmniTokensPrompt:
        """Return the prompt.

        Raises PayloadCorrupt without embeddings or for NaN, ModelError for a start at which they leave the messages'
        prompt, and ConfigError if nothing renders these. The runner refuses rows of another width.
        """
        payload = self.payload(stage_input, "embeds")
        if payload.prompt_embeds is None:
            raise PayloadCorrupt("missing", field="prompt_embeds", stage=payload.manifest.stage)
        whole = _prompt(stage_input, embeds=to_torch(payload.prompt_embeds.embeds))
        values = {} if payload.additional_information is None else payload.additional_information.values
        start = values.get("prompt_start")
        return whole if start is None else self._within_messages(whole, start, stage_input.request)

    def _within_messages(self, whole: OmniTokensPrompt, start: int, request: Mapping[str, Any]) -> OmniTokensPrompt:
        """Return the prompt of a request's messages, with these rows from ``start`` on."""
        token_ids = self._renderer.encode(request) if request.get("messages") else None
        if token_ids is None or whole.prompt_embeds is None:
            raise ModelError("the job has no messages that become token ids", field="values.prompt_start")
        span = PromptSpan(start, whole.prompt_embeds)
        if span.end > len(token_ids):
            said = f"rows for the positions {start} to {span.end - 1}, and the messages' prompt has {len(token_ids)}"
            raise ModelError(said, field="values.prompt_start")
        return replace(whole, prompt_token_ids=token_ids, prompt_embeds=None, prompt_spans=[span])


def _prompt(
    stage_input: StageInput[ArParameters], token_ids: Sequence[int] = (), embeds: torch.Tensor | None = None
) -> OmniTokensPrompt:
    return OmniTokensPrompt(
        token_ids,
        {},
        stage_input.parameters,
        stage_input.seed,
        stage_input.capture,
        prompt_embeds=embeds,
        tools=None if stage_input.upstream else ToolUse.of(stage_input.request),
    )


def _decoded(stage_input: StageInput[ArParameters], part: Mapping[str, Any], field: str) -> Any:
    data = stage_input.media[part["media"]]
    with stage_input.wall_for(field) as wall:
        if part["type"] == "audio":
            return wall.decode_audio(data, AUDIO_SAMPLING_RATE), AUDIO_SAMPLING_RATE
        return wall.decode_image(data) if part["type"] == "image" else wall.decode_video(data)
