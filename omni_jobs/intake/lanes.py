"""``Lanes``: which requests wait for each other while they are parsed and admitted, and which do not.

A small text waits for nothing that is large, and no text waits for media that are decoded. Large bodies take turns, one
at a time, because each holds the interpreter's lock: two at once take as long as two after another, and every small
request waits for its turn behind both. So do the groups of bulks.
"""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import DecodersUnavailable
from omni_jobs.intake.submit_request import SubmitRequest

T = TypeVar("T")

_SMALL_BYTES = 16 << 10
_FEW_VALUES = 256


class Lanes:
    """The lanes of one API process. For one event loop."""

    def __init__(self, decoders: int) -> None:
        """``decoders``: how many media are decoded at a time."""
        self._small = CapacityLimiter(max(2, os.cpu_count() or 2))
        self._large = CapacityLimiter(1)
        self._groups = CapacityLimiter(1)
        self._media = CapacityLimiter(decoders)

    async def parse(self, requests: Sequence[SubmitRequest], parse: Callable[[], T]) -> T:
        """Return the result of ``parse``, which parses these requests."""
        if len(requests) == 1 and _is_small(requests[0]):
            if sum(requests[0].body.count(mark) for mark in b",[{") <= _FEW_VALUES:
                return parse()  # on the event loop, because a thread would cost more
            return await run_sync(parse, limiter=self._small)
        return await run_sync(parse, limiter=self._of(requests))

    async def admit(self, texts: Sequence[SubmitRequest], admit: Callable[[], T], *, tokenizes: bool) -> T:
        """Return the result of ``admit``, which admits these requests, none of them with media.

        ``tokenizes``: whether it counts tokens, which takes a millisecond and more.
        """
        if len(texts) == 1 and _is_small(texts[0]):
            return await run_sync(admit, limiter=self._small) if tokenizes else admit()
        return await run_sync(admit, limiter=self._of(texts))

    async def admit_media(self, admit: Callable[[], T], *, waits: bool) -> T:
        """Return the result of ``admit``, which admits a request with media.

        Raises DecodersUnavailable where no decoder is free, unless the request ``waits`` for one.
        """
        if not waits and self._media.available_tokens < 1:
            raise DecodersUnavailable("too many submits wait for their media to be decoded")
        return await run_sync(admit, limiter=self._media)

    def _of(self, requests: Sequence[SubmitRequest]) -> CapacityLimiter:
        return self._large if len(requests) == 1 else self._groups


def _is_small(request: SubmitRequest) -> bool:
    return len(request.body) <= _SMALL_BYTES and request.prompt_embeds is None
