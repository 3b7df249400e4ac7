"""``Vocabulary``: the bytes that each token of a checkpoint's tokenizer stands for."""

from typing import Any, Self

import xgrammar

from omni_jobs.errors import ModelError


class Vocabulary:
    """The tokens of a tokenizer, by xgrammar, which constrains answers by the same."""

    def __init__(self, info: xgrammar.TokenizerInfo) -> None:
        """Take xgrammar's own of it."""
        self._info = info
        self._bytes: list[bytes] = info.decoded_vocab

    @classmethod
    def of(cls, tokenizer: Any, size: int) -> Self:
        """Read a tokenizer of vLLM's, with ``size`` rows in the model's embeddings; a second for 150,000 tokens.

        Raise ModelError for a kind of tokenizer that xgrammar does not know.
        """
        try:
            return cls(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size))
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise ModelError(f"the checkpoint's tokenizer cannot be read by its bytes: {error}") from error

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token, which may be a part of a character; of a special token those of its name."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def serialized(self) -> str:
        """Return the vocabulary as ``workers.vllm_hooks.grammar_compiler`` reads it."""
        text: str = self._info.serialize_json()
        return text
