"""``PrefixReader``: what an engine's captured requests read of vLLM's prefix cache.

    begin → the request runs → taking (its rows) | fail

``KeptPrefixes`` decides. This class gives it a runner's prompts, stands for it where nothing is kept, and finds out
that a request has read tokens whose rows are not kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from omni_jobs.errors import ModelError
from workers.runners.ar.kept_prefixes import KeptPrefixes, Reading, RowsChange, prompt_of
from workers.runners.ar.row_layout import HIDDEN_STATES

_KEPT_PART = 8  # beside the bytes for hidden states an eighth as many, for prompts that begin like an earlier one


class RowsMissing(Exception):
    """A request read tokens of vLLM's cache whose rows are not kept."""


class PrefixReader:
    """Decides for each captured request what it reads. Used on one event loop."""

    def __init__(self, kept: KeptPrefixes | None) -> None:
        """Read what ``kept`` knows of; None: captured requests read nothing."""
        self._kept = kept

    @classmethod
    def of_engine(cls, prefix_blocks: tuple[int, int], row_bytes: int, capture_bytes: int) -> Self:
        """Return the reader of an engine.

        ``prefix_blocks``: as ``Engine.prefix_blocks``. ``capture_bytes``: the limit for rows of ``row_bytes`` each.
        """
        block, blocks = prefix_blocks
        most = capture_bytes // _KEPT_PART // (block * row_bytes) if block else 0
        return cls(KeptPrefixes(block, most, known=2 * blocks) if most else None)

    def begin(self, vllm_prompt: Mapping[str, Any], adapter: str | None) -> Reading | None:
        """Return what a rendered prompt may read, with that LoRA adapter; None for nothing.

        ``taking`` or ``fail`` has to follow.
        """
        whole = None if self._kept is None else prompt_of(vllm_prompt, adapter)
        return None if self._kept is None or whole is None else self._kept.begin(whole)

    @contextmanager
    def taking(self, reading: Reading | None, answer: Sequence[int]) -> Iterator[RowsChange | None]:
        """Context manager: give what the engine does with the rows of a request that has answered with these tokens.

        Raises RowsMissing for the body's ModelError of rows that were never computed, if the request read the cache.
        """
        if self._kept is None or reading is None:
            yield None
            return
        change = self._kept.end(reading, answer)
        try:
            yield change
        except BaseException as error:
            self._kept.undo(change)
            if isinstance(error, ModelError) and error.field == HIDDEN_STATES and reading.salt is not None:
                raise RowsMissing from error
            raise

    def fail(self, reading: Reading | None, answer: Sequence[int]) -> None:
        """Note that a request has ended without its rows."""
        if self._kept is not None and reading is not None:
            self._kept.fail(reading, answer)

    def start_anew(self) -> None:
        """Let no request read what vLLM has cached until now."""
        if self._kept is not None:
            self._kept.start_anew()
