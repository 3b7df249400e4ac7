"""``Speculation``: vLLM's ``speculative_config`` in a stage config: who guesses the next tokens, and how many."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Speculation(BaseModel):
    """The fields of vLLM's ``SpeculativeConfig`` that a stage config may give, with their meanings there.

    vLLM checks the guessed tokens in one step of the model, and keeps those that the model would have drawn itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    method: Literal["ngram", "draft_model", "mtp"]
    num_speculative_tokens: Annotated[int, Field(ge=1, le=32)]
    prompt_lookup_max: Annotated[int, Field(ge=1, le=64)] | None = None
    prompt_lookup_min: Annotated[int, Field(ge=1, le=64)] | None = None
    model: Annotated[str, Field(pattern=r"^/")] | None = None

    @model_validator(mode="after")
    def _fits_its_method(self) -> Self:
        longest, shortest = self.prompt_lookup_max, self.prompt_lookup_min
        if self.method == "ngram":
            if longest is None:
                raise ValueError("ngram needs prompt_lookup_max, the longest run of tokens that it looks for")
            if shortest is not None and shortest > longest:
                raise ValueError(f"prompt_lookup_min, {shortest}, is more than prompt_lookup_max, {longest}")
        elif longest is not None or shortest is not None:
            raise ValueError(f"prompt_lookup_max and prompt_lookup_min are for ngram, not for {self.method}")
        if (self.model is not None) != (self.method == "draft_model"):
            raise ValueError("model is the directory of the draft: draft_model needs it, and no other method takes it")
        return self
