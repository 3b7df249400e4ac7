"""The sampling parameters of AR stages: ``TokenParameters``, and ``ArParameters`` where the tokens are text."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import Field, ValidationInfo, field_validator

from omni_jobs.pipelines.response_format import ResponseFormat
from workers.runners.lora_modules import LoraParameters

MOST_LOGPROBS: Final = 100_000
"""Tokens with a logprob, alternatives among them, that a stage run's result has at most: about 8 MB of JSON."""


class TokenParameters(LoraParameters):
    """Sampling parameters of an autoregressive stage, with the names and meanings of vLLM's ``SamplingParams``."""

    work: ClassVar[Mapping[str, int]] = {"max_tokens": 1024}

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=100_000, description="0: all tokens")] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    min_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    ignore_eos: bool = False

    @field_validator("min_p")
    @classmethod
    def _not_with_speculation(cls, value: float, info: ValidationInfo) -> float:
        if value and getattr(info.context, "speculates", False):
            raise ValueError("the stage guesses tokens (engine.speculative_config), and checks them without min_p")
        return value

    @field_validator("min_tokens")
    @classmethod
    def _within_max_tokens(cls, value: int, info: ValidationInfo) -> int:
        most = info.data.get("max_tokens")
        if most is not None and value > most:
            raise ValueError(f"{value} is more than max_tokens, {most}")
        return value


class ArParameters(TokenParameters):
    """Those of a stage whose tokens are text. The names that vLLM lacks are OpenAI's."""

    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(max_length=16, strict=False)
    ] = ()
    response_format: Annotated[
        ResponseFormat | None, Field(description="the form of the text: text, json_object or json_schema")
    ] = None
    logprobs: Annotated[bool, Field(description="whether the result has the logprob of each token of the text")] = False
    top_logprobs: Annotated[
        int, Field(ge=0, le=20, validate_default=True, description="the likeliest tokens beside each, with logprobs")
    ] = 0

    @field_validator("response_format")
    @classmethod
    def _ends_by_itself(cls, value: ResponseFormat | None, info: ValidationInfo) -> ResponseFormat | None:
        if value is None or value.is_free:
            return value
        if info.data.get("ignore_eos") or info.data.get("min_tokens"):
            raise ValueError("JSON ends where it is complete: neither ignore_eos nor min_tokens goes with it")
        return value

    @field_validator("top_logprobs")
    @classmethod
    def _fits_a_result(cls, value: int, info: ValidationInfo) -> int:
        if not info.data.get("logprobs"):
            if value:
                raise ValueError("needs logprobs, which is not true")
            return value
        most = info.data.get("max_tokens")
        if most is not None and (value + 1) * most > MOST_LOGPROBS:
            said = f"{most:,} tokens (max_tokens) with {value + 1} logprobs each are too many"
            raise ValueError(f"{said}: a result has {MOST_LOGPROBS:,} at most")
        return value
