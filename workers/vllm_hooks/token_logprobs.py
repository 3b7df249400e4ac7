"""``TokenLogprobs``: the logprob of each token of a text, and of the likeliest beside it, as OpenAI shows them."""

from typing import Any

from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput

from workers.vllm_hooks.vocabulary import Vocabulary

_LEAST = -9999.0  # OpenAI's for what is next to impossible; a grammar makes it -inf, which is no JSON
_DIGITS = 6


class TokenLogprobs:
    """Collects the logprobs of one request's tokens, in the order of the text."""

    def __init__(self, vocabulary: Vocabulary, likeliest: int) -> None:
        """Take the vocabulary of the request's engine, and how many of the likeliest tokens are asked for."""
        self._vocabulary = vocabulary
        self._likeliest = likeliest
        self._entries: list[dict[str, Any]] = []
        self._bytes: list[bytes] = []

    def add(self, output: CompletionOutput) -> None:
        """Add those of the tokens that came last, of a request that was made with ``flat_logprobs``."""
        found = output.logprobs
        if not isinstance(found, FlatLogprobs):
            return
        for begin, end in zip(found.start_indices, found.end_indices, strict=True):
            # The token's own is first. If it is among the likeliest as well, vLLM may name it twice.
            own = self._entry(found.token_ids[begin], found.logprobs[begin])
            ranks = {found.token_ids[n]: (found.ranks[n] or 0, n) for n in range(begin, end)}
            likeliest = [n for _, n in sorted(ranks.values())][: self._likeliest]
            top = [self._entry(found.token_ids[n], found.logprobs[n]) for n in likeliest]
            self._entries.append({**own, "top_logprobs": top})
            self._bytes.append(bytes(own["bytes"]))

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._vocabulary.bytes_of(token_id)
        shown = round(max(logprob, _LEAST), _DIGITS)
        return {"token": data.decode(errors="replace"), "logprob": shown, "bytes": list(data)}

    def of_text(self, text: str, *, stopped: bool) -> list[dict[str, Any]]:
        """Return {"token", "logprob", "bytes", "top_logprobs"} of each token of the text, which has been cut.

        Left out are the tokens after it: the one at which the model ended, where it ``stopped``, and those that lie in
        a stop string.
        """
        entries, parts = list(self._entries), list(self._bytes)
        beyond = len(b"".join(parts)) - len(text.encode())
        while stopped and parts and (parts[-1] == b"" or len(parts[-1]) <= beyond):
            beyond -= len(parts.pop())
            entries.pop()
        return entries
