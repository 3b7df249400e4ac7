"""The input processors of Qwen3-Omni: ``thinker2talker`` and ``talker2code2wav``.

Source: Transformers' ``Qwen3OmniMoeForConditionalGeneration.generate``, "2. Prepare talker input". The talker hears
what users said, without system messages and earlier replies, and then the reply that it speaks:

    prompt    [codec pad] * (U + 9), for U tokens of users' turns
    M-RoPE    the thinker's positions of these turns, moved together; then nine of text

The codec's padding is a token that is never sampled, so no penalty for repeating it shows. What the inputs are made of
stands in ``workers.models.qwen3_omni.talker_prompt``.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import FLOAT_DTYPES, AdditionalInformationPayload
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.checkpoint_files import positive, read_json
from workers.models.checkpoint_weights import read_rows
from workers.models.qwen3_omni.parameters import ChunkParameters, TalkerParameters
from workers.models.qwen3_omni.talker_prompt import EMBEDS, PROMPT_IDS, ROLE_TOKENS, TALKER_TAIL
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.flow_processor import FlowProcessor
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput

_INTEGERS = frozenset({"I64"})
_MEDIA = ("audio_token_id", "image_token_id", "video_token_id")


class ThinkerRowsProcessor(FlowProcessor):
    """Makes the talker's prompt from the thinker's payload. Its name in a stage config is ``thinker2talker``."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Read config, speakers and embeddings. Raise ConfigError when the model or one of them is missing or wrong."""
        super().__init__(stage, model)
        model = needed_model(model, stage)
        file = model.path / "config.json"
        config = read_json(file)

        def token(*path: str) -> int:
            return positive(config, path, str(file))

        self._turn, self._user, self._assistant = (
            token(name) for name in ("im_start_token_id", "user_token_id", "assistant_token_id")
        )
        self._media = torch.tensor([token("thinker_config", name) for name in _MEDIA])
        self._padding = token("talker_config", "codec_pad_id")
        self._speakers = _speakers(config, model.voices, str(file))
        self._default_voice = model.voices[0].lower() if model.voices else next(iter(self._speakers))
        tts = [token(f"tts_{name}_token_id") for name in ("bos", "eos", "pad")]
        self._tts = read_rows(model.path, "thinker.model.embed_tokens.weight", tts)

    def __call__(self, stage_input: StageInput[TalkerParameters]) -> OmniTokensPrompt:
        """Return the prompt from the thinker's payload, with the talker's information.

        Raise PayloadCorrupt naming a field that is missing or wrong, and ModelError for an unknown voice and for a
        prompt without a turn of the assistant at its end.
        """
        information = self.information(stage_input, "hidden_states")
        hidden, embeds = (
            to_torch(information.tensor(name, dtypes=FLOAT_DTYPES, rank=2)) for name in ("hidden_states", EMBEDS)
        )
        ids = to_torch(information.tensor(PROMPT_IDS, dtypes=_INTEGERS, rank=1))
        positions = to_torch(information.tensor("mrope_positions", dtypes=_INTEGERS, rank=2))
        self._check(information, hidden, embeds, ids, positions)
        turns = self._turns(ids)
        places = torch.cat([torch.arange(begin, end) for begin, end in turns] or [torch.zeros(0, dtype=torch.int64)])
        is_medium = torch.isin(ids[places], self._media)
        user = torch.where(is_medium[:, None], hidden[places], embeds[places])
        moved = _moved_together(positions, turns)
        parameters = stage_input.parameters
        return OmniTokensPrompt(
            prompt_token_ids=[self._padding] * moved.shape[1],
            additional_information={
                "user": user,
                "media": torch.nonzero(is_medium)[:, 0],
                "reply": embeds[self._reply(ids) :].clone(),
                "tts": self._tts.to(embeds.dtype),
                "speaker": self._speaker(stage_input.voice or information.values.get("voice")),
                "mrope_positions": moved,
                "mrope_delta": int(moved.max()) + 1 - moved.shape[1],
                "residual_temperature": parameters.temperature_of_residuals,
                "residual_top_k": parameters.residual_top_k,
                "residual_top_p": parameters.residual_top_p,
                "seed": stage_input.seed,
            },
            parameters=parameters,
            seed=stage_input.seed,
            capture=stage_input.capture,
        )

    def _check(
        self,
        information: AdditionalInformationPayload,
        hidden: torch.Tensor,
        embeds: torch.Tensor,
        ids: torch.Tensor,
        positions: torch.Tensor,
    ) -> None:
        """Raise PayloadCorrupt naming a tensor of another shape than the others'."""
        due = {
            "hidden_states": (hidden, (len(hidden), self._tts.shape[1])),
            EMBEDS: (embeds, tuple(hidden.shape)),
            PROMPT_IDS: (ids, (information.value("prompt_tokens", int),)),
            "mrope_positions": (positions, (3, len(ids))),
        }
        for name, (found, shape) in due.items():
            if tuple(found.shape) != shape:
                raise PayloadCorrupt(
                    f"{list(found.shape)} where {list(shape)} is due",
                    field=f"tensors.{name}.shape",
                    key=information.key,
                    stage=information.stage,
                )

    def _turns(self, ids: torch.Tensor) -> list[tuple[int, int]]:
        """Return where the users' turns of a prompt begin and end."""
        begins = torch.nonzero(ids == self._turn)[:, 0].tolist()
        turns = pairwise([*begins, len(ids)])
        return [(begin, end) for begin, end in turns if begin + 1 < end and int(ids[begin + 1]) == self._user]

    def _reply(self, ids: torch.Tensor) -> int:
        """Return where the last turn of the assistant begins. Raise ModelError where there is none to speak."""
        begins = torch.nonzero((ids[:-1] == self._turn) & (ids[1:] == self._assistant))[:, 0]
        if not len(begins) or int(begins[-1]) + ROLE_TOKENS > len(ids):
            raise ModelError("the prompt ends with no turn of the assistant", field="messages")
        return int(begins[-1])

    def _speaker(self, voice: object) -> int:
        """Return the voice's token; None means the pipeline's first voice. Raise ModelError."""
        name = self._default_voice if voice is None else voice
        token = self._speakers.get(name.lower()) if isinstance(name, str) else None
        if token is None:
            raise ModelError(f"no voice {name!r}; there is {', '.join(self._speakers)}", field="audio.voice")
        return token


class CodeFramesProcessor(FlowProcessor):
    """Makes code2wav's prompt of the talker's frames. Its name in a stage config is ``talker2code2wav``."""

    def __call__(self, stage_input: StageInput[ChunkParameters]) -> DiffusionPrompt[ChunkParameters]:
        """Return the prompt from the payload's tensor ``frames`` int64 [N, codebooks].

        Raise PayloadCorrupt naming a field that is missing or wrong, and ModelError when the talker said nothing.
        """
        information = self.information(stage_input, "code_frames")
        frames = to_torch(information.tensor("frames", dtypes=_INTEGERS, rank=2)).clone()
        if not len(frames):
            raise ModelError("the talker ended before it said anything", field="frames")
        return DiffusionPrompt({"frames": frames}, {}, stage_input.parameters, stage_input.seed)


def _speakers(config: Mapping[str, Any], voices: Sequence[str], file: str) -> dict[str, int]:
    """Return the token of each voice by its name in lower case. Raise ConfigError; each of ``voices`` must be there."""
    talker = config.get("talker_config")
    table = talker.get("speaker_id") if isinstance(talker, dict) else None
    if not isinstance(table, dict) or not table or not all(type(token) is int for token in table.values()):
        raise ConfigError("not a table of voices and their tokens", file=file, field="talker_config.speaker_id")
    speakers = {name.lower(): token for name, token in table.items()}
    if missing := [voice for voice in voices if voice.lower() not in speakers]:
        known = ", ".join(sorted(speakers))
        raise ConfigError(f"no speaker {', '.join(missing)}; the checkpoint has {known}", file=file, field="voices")
    return speakers


def _moved_together(positions: torch.Tensor, turns: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the positions int64 [3, U + 9] of the talker's prompt, of the thinker's [3, P] and the users' turns.

    Each turn begins with text, so within it nothing but the beginning changes.
    """
    parts = []
    begin = 0
    for first, end in turns:
        parts.append(positions[:, first:end] - int(positions[0, first]) + begin)
        begin = int(parts[-1].max()) + 1
    parts.append(torch.arange(begin, begin + TALKER_TAIL).expand(3, -1))
    return torch.cat(parts, dim=1)
