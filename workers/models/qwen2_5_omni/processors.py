"""The input processors of Qwen2.5-Omni: ``thinker2talker`` and ``talker2code2wav``.

``talker2code2wav`` cuts the talker's codes at their end token and names the speaker. ``thinker2talker`` makes the
talker's prompt and its feed: the rows that the talker adds to its inputs, one for each position of prompt and codes.
Beyond its end the last row repeats.

Source of both: Transformers' ``Qwen2_5OmniForConditionalGeneration.generate``, "2. Generate speech tokens from talker
module". With P prompt and N generated tokens of the thinker, its rows [P + N - 1, H] and E its embedding table (``+``
joins rows, one after the other):

    prompt  [codec mask] * P + [codec pad, codec bos]
    feed    rows[:P] + E(speaker) + rows[P:] + E(tts eos) + E(tts pad)
    M-RoPE  the thinker's positions, then two text positions; the same delta
"""

import torch

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import FLOAT_DTYPES
from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.checkpoint_weights import read_rows
from workers.models.qwen2_5_omni.checkpoint import SPEAKERS, read_speakers, talker_ids
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen2_5_omni.prompts import CODEC_PROMPT_TOKENS
from workers.runners.ar.parameters import TokenParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.flow_processor import FlowProcessor
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput

_EMBEDDING = "thinker.model.embed_tokens.weight"


class Thinker2TalkerProcessor(FlowProcessor):
    """Makes the talker's prompt from the thinker's payload. Its name in a stage config is ``thinker2talker``.

    It holds the few rows of the thinker's embedding table that every prompt needs.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Read config, speakers and embeddings. Raise ConfigError when the model or one of them is missing or wrong."""
        super().__init__(stage, model)
        model = needed_model(model, stage)
        ids = talker_ids(model.path, "codec_mask", "codec_pad", "codec_start", "text_end", "text_pad")
        self._mask, *self._codec_prompt, end, pad = ids
        speakers = read_speakers(model.path, model.voices)
        self._default_voice = model.voices[0] if model.voices else next(iter(speakers))
        try:
            begins = {name: int(speaker["bos_token"]) for name, speaker in speakers.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a speaker has no bos_token: {error}", file=str(model.path / SPEAKERS)) from error
        table = read_rows(model.path, _EMBEDDING, [end, pad, *begins.values()])
        self._end, self._pad, *rows = (table[n : n + 1] for n in range(len(table)))  # [1, H] each
        self._speakers = dict(zip(begins, rows, strict=True))

    def __call__(self, stage_input: StageInput[TokenParameters]) -> OmniTokensPrompt:
        """Return the prompt from the thinker's payload; its additional information is the feed and M-RoPE positions.

        Raise PayloadCorrupt naming a field that is missing or wrong, and ModelError for an unknown voice.
        """
        information = self.information(stage_input, "hidden_states")
        rows = to_torch(information.tensor("hidden_states", dtypes=FLOAT_DTYPES, rank=2))
        positions = to_torch(information.tensor("mrope_positions", dtypes=frozenset({"I64"}), rank=2))
        generated = information.tensor("token_ids", dtypes=frozenset({"I64"}), rank=1).shape[0]
        prompt = information.value("prompt_tokens", int)
        delta = information.value("mrope_delta", int)

        def refuse(message: str, field: str) -> PayloadCorrupt:
            return PayloadCorrupt(message, field=field, key=information.key, stage=information.stage)

        if prompt < 1 or generated < 1:
            raise refuse(f"{prompt} prompt and {generated} generated tokens", "values.prompt_tokens")
        expected = (prompt + generated - 1, self._end.shape[1])
        if tuple(rows.shape) != expected:
            raise refuse(f"{list(rows.shape)} where {list(expected)} is due", "tensors.hidden_states.shape")
        if tuple(positions.shape) != (3, prompt):
            raise refuse(f"{list(positions.shape)} where {[3, prompt]} is due", "tensors.mrope_positions.shape")
        highest = int(positions.max())
        if int(positions.min()) < 0 or delta != highest + 1 - prompt:
            raise refuse(f"{delta} does not continue the positions", "values.mrope_delta")

        speaker = self._speaker(stage_input.voice or information.values.get("voice"))
        parts = [rows[:prompt], speaker, rows[prompt:], self._end, self._pad]
        after = torch.tensor([highest + 1, highest + 2]).expand(3, CODEC_PROMPT_TOKENS)
        return OmniTokensPrompt(
            prompt_token_ids=[self._mask] * prompt + self._codec_prompt,
            additional_information={
                "feed": torch.cat([part.to(rows.dtype) for part in parts]),
                "mrope_positions": torch.cat([positions, after], dim=1),
                "mrope_delta": delta,
            },
            parameters=stage_input.parameters,
            seed=stage_input.seed,
            capture=stage_input.capture,
        )

    def _speaker(self, voice: object) -> torch.Tensor:
        """Return the voice's row [1, H]; None means the pipeline's first voice. Raise ModelError."""
        name = self._default_voice if voice is None else voice
        row = self._speakers.get(name) if isinstance(name, str) else None
        if row is None:
            raise ModelError(f"no voice {name!r}; there is {', '.join(self._speakers)}", field="audio.voice")
        return row


class Talker2Code2WavProcessor(FlowProcessor):
    """Makes code2wav's prompt: cuts the talker's codes at their end token and names the speaker.

    Its name in a stage config is ``talker2code2wav``.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Read the codec's end tokens. Raise ConfigError when there is no model or its config lacks these tokens."""
        super().__init__(stage, model)
        model = needed_model(model, stage)
        self._ends = torch.tensor(talker_ids(model.path, "codec_pad", "codec_end"))  # both end the talker's codes
        self._default_voice = model.voices[0] if model.voices else None

    def __call__(self, stage_input: StageInput[OdeParameters]) -> DiffusionPrompt[OdeParameters]:
        """Return the prompt from the payload's tensor ``codes`` int64 [N].

        The voice is the job's, or else the value ``voice`` of the payload, or else the pipeline's first. Raise
        PayloadCorrupt naming a field that is missing or wrong, and ModelError when the talker said nothing.
        """
        information = self.information(stage_input, "codes")
        codes = to_torch(information.tensor("codes", dtypes=frozenset({"I64"}), rank=1))
        voice = stage_input.voice
        if voice is None and ("voice" in information.values or self._default_voice is None):
            voice = information.value("voice", str)
        ends = torch.nonzero(torch.isin(codes, self._ends))
        spoken = codes[: int(ends[0]) if len(ends) else None].clone()  # a copy lets the payload's memory be freed
        if not len(spoken):
            raise ModelError("the talker ended before it said anything", field="codes")
        return DiffusionPrompt(
            {"codes": spoken}, {"voice": voice or self._default_voice}, stage_input.parameters, stage_input.seed
        )
