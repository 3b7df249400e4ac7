"""``KeptPrefixes``: which blocks of captured prompts the engine keeps the rows of, so that a prefix is computed once.

    begin → the request runs → end

vLLM caches keys and values by block: a request whose prompt begins like an earlier one computes the rest alone. Its
rows are then those of the earlier one, if they are kept. So captured requests share a part of vLLM's cache that only
they fill (``cache_salt``), and this class knows of each block that may be in it whether its rows are kept. A request
reads the cache if nothing can be there beyond the kept rows; any other has a part of its own, which nobody reads.

A block is known by a digest of its tokens, of the media that they stand for, and of all before it. The rows themselves
lie in the engine's process, where ``end`` says what to keep and what to forget. Used on one event loop.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class CapturedPrompt:
    """What decides the rows of a captured prompt: its tokens, the adapter, and which medium stands at which place."""

    token_ids: tuple[int, ...]
    adapter: str | None = None
    media: tuple[tuple[int, int, str], ...] = ()  # (offset, tokens, digest) in the order of the offsets


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A request under way: the keys of its prompt's blocks, and of how many of these the rows are kept."""

    prompt: CapturedPrompt
    keys: tuple[str, ...]
    kept: int
    salt: str | None  # of vLLM's cache; None: one that no other request has


class RowsChange(NamedTuple):
    """What the engine does with the rows of a request that has ended."""

    block: int  # tokens
    fill: Sequence[str]  # the keys of its first blocks, whose rows are kept
    keep: Sequence[tuple[int, str]]  # the number of a block and its key, to be kept
    forget: Sequence[str]  # keys


class KeptPrefixes:
    """The blocks that are known, the least recently used first, and the requests that are under way."""

    def __init__(self, block: int, kept: int, known: int) -> None:
        """Keep the rows of at most ``kept`` blocks of ``block`` tokens, and know of at most ``known`` others.

        ``known`` is well above the number of blocks that vLLM's cache has room for.
        """
        self._block = block
        self._most_kept = kept
        self._most_known = known
        self._salt = uuid4().hex
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._lost: OrderedDict[str, None] = OrderedDict()  # in vLLM's cache perhaps, and their rows are not kept
        self._used: Counter[str] = Counter()  # by requests under way, which will fill their rows with these
        self._under_way: dict[Reading, None] = {}
        self._doubtful: list[str] = []  # the engine may keep their rows, and nobody will read them

    @property
    def kept(self) -> int:
        """The number of blocks whose rows are kept."""
        return len(self._kept)

    def begin(self, prompt: CapturedPrompt) -> Reading:
        """Return what a request that begins now may read; ``end`` or ``fail`` has to follow."""
        keys = tuple(self._keys(prompt))
        kept = next((n for n, key in enumerate(keys) if key not in self._kept), len(keys))
        safe = not self._may_be_cached(prompt, keys, kept)
        reading = Reading(prompt, keys, kept if safe else 0, self._salt if safe else None)
        for key in keys[: reading.kept]:
            self._kept.move_to_end(key)
        self._used.update(keys[: reading.kept])
        self._under_way[reading] = None
        return reading

    def _may_be_cached(self, prompt: CapturedPrompt, keys: Sequence[str], kept: int) -> bool:
        """Return whether vLLM's cache may have the block behind the kept ones of a prompt."""
        if kept < len(keys) and (keys[kept] in self._lost or self._is_being_computed(keys[kept])):
            return True
        # What another request answers is not known yet, and may be how this prompt goes on.
        return any(_begins_with(prompt, other.prompt) for other in self._under_way if other.salt is not None)

    def _is_being_computed(self, key: str) -> bool:
        return any(key in other.keys[other.kept :] for other in self._under_way if other.salt is not None)

    def end(self, reading: Reading, answer: Sequence[int]) -> RowsChange:
        """Return what the engine does with the rows of a request that has answered with these tokens.

        It has rows of all tokens but the last, which vLLM may have computed nevertheless.
        """
        whole = self._leave(reading, answer)
        keys = list(self._keys(whole))
        rows = (len(whole.token_ids) - 1) // self._block
        keep = []
        for number, key in enumerate(keys[:rows]):
            if key not in self._kept:
                keep.append((number, key))
                self._lost.pop(key, None)
            self._kept[key] = None
            self._kept.move_to_end(key)
        self._lose(key for key in keys[rows:] if key not in self._kept)
        forget = self._forget(len(self._kept) - self._most_kept)
        forget += [key for key in self._doubtful if key not in self._kept]
        self._doubtful.clear()
        return RowsChange(self._block, reading.keys[: reading.kept], keep, forget)

    def undo(self, change: RowsChange) -> None:
        """Note that the engine may have done nothing of that change, or all of it: the next one forgets the rest."""
        for _, key in change.keep:
            self._kept.pop(key, None)
        self._lose(key for _, key in change.keep)
        self._doubtful += [*(key for _, key in change.keep), *change.forget]

    def fail(self, reading: Reading, answer: Sequence[int] = ()) -> None:
        """Note that a request has ended without its rows."""
        whole = self._leave(reading, answer)
        self._lose(key for key in self._keys(whole) if key not in self._kept)

    def start_anew(self) -> None:
        """Let no request read what vLLM has cached until now."""
        self._salt = uuid4().hex

    def _leave(self, reading: Reading, answer: Sequence[int]) -> CapturedPrompt:
        """Return the request's prompt with its answer, now that it is not under way any more."""
        del self._under_way[reading]
        self._used.subtract(reading.keys[: reading.kept])
        self._used += Counter()
        return replace(reading.prompt, token_ids=(*reading.prompt.token_ids, *answer))

    def _forget(self, number: int) -> list[str]:
        """Take the least recently used blocks, which no request under way needs, from those that are kept."""
        found: list[str] = []
        for key in self._kept:
            if len(found) >= number:
                break
            if key not in self._used:
                found.append(key)
        for key in found:
            del self._kept[key]
        self._lose(found)
        return found

    def _lose(self, keys: Iterable[str]) -> None:
        for key in reversed(list(keys)):  # vLLM, too, drops the last block of a request first
            self._lost[key] = None
            self._lost.move_to_end(key)
        while len(self._lost) > self._most_known:
            self._lost.popitem(last=False)

    def _keys(self, prompt: CapturedPrompt) -> Iterator[str]:
        """Yield the key of each whole block."""
        digest = blake2b(repr(prompt.adapter).encode(), digest_size=16)
        for begin in range(0, len(prompt.token_ids) - self._block + 1, self._block):
            end = begin + self._block
            digest = digest.copy()
            digest.update(array("q", prompt.token_ids[begin:end]).tobytes())
            for medium in prompt.media:
                if medium[0] < end and medium[0] + medium[1] > begin:
                    digest.update(repr(medium).encode())
            yield digest.hexdigest()


def _begins_with(prompt: CapturedPrompt, other: CapturedPrompt) -> bool:
    length = len(other.token_ids)
    return prompt.adapter == other.adapter and prompt.token_ids[:length] == other.token_ids


def prompt_of(rendered: Mapping[str, Any], adapter: str | None) -> CapturedPrompt | None:
    """Return a rendered prompt of vLLM; None for one that is not of tokens alone, or whose media have no digests."""
    token_ids = rendered.get("prompt_token_ids")
    if token_ids is None or rendered.get("prompt_embeds") is not None:
        return None
    digests: Mapping[str, Sequence[str | None]] = rendered.get("mm_hashes") or {}
    media = []
    for kind, places in (rendered.get("mm_placeholders") or {}).items():
        known = digests.get(kind) or ()
        if len(known) != len(places) or None in known:
            return None
        for place, digest in zip(places, known, strict=True):
            media.append((int(place.offset), int(place.length), str(digest)))
    return CapturedPrompt(tuple(token_ids), adapter, tuple(sorted(media)))
