"""``Lanes``: decides which requests wait for each other while they are parsed and admitted.

A small text waits for nothing that is large, and no text waits for media that are decoded. Large bodies take turns, one
at a time, because each holds the interpreter's lock: two at once take as long as two after another, and every small
request waits for its turn behind both. The groups of a bulk's lines take turns among themselves.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from anyio import CapacityLimiter, move_on_after
from anyio.to_thread import run_sync

from omni_jobs.errors import DecodersUnavailable, PluginBroken
from omni_jobs.prompts.renderers import HANGS_S
from omni_jobs.requests import Submission

T = TypeVar("T")

_SMALL_BYTES = 16 << 10
_FEW_VALUES = 256
_LONG_HANGS_S = 600.0  # of a bulk's group, and of media, which wait for decoders


class Lanes:
    """Bounds how many requests of a size are parsed and admitted at once in an API process. For one event loop."""

    def __init__(self, media_requests: int) -> None:
        """Make the lanes. ``media_requests``: how many requests may be in decoders, or wait for one, at a time."""
        self._small = CapacityLimiter(max(2, os.cpu_count() or 2))
        self._large = CapacityLimiter(1)
        self._groups = CapacityLimiter(1)  # of bulks
        self._media = CapacityLimiter(media_requests)
        self._threads = CapacityLimiter(math.inf)  # whoever takes one holds a place in a lane

    async def run_parsing(
        self, bodies: Sequence[bytes | bytearray], parse: Callable[[], T], *, more_bytes: int = 0
    ) -> T:
        """Call ``parse``, on a thread unless these bodies are small, once their lane has room. Return its result.

        It is a door's own first step: what it makes of the bodies are Submissions, whose digests it makes as well.
        ``more_bytes``: how many bytes it works on beside a single body.
        """
        lane = self._lane_of([len(body) + more_bytes for body in bodies])
        if lane is self._small and sum(bodies[0].count(mark) for mark in b",[{") <= _FEW_VALUES:
            return parse()  # on the event loop, because a thread would cost more
        return await run_sync(parse, limiter=lane)

    async def run_admission(self, texts: Sequence[Submission], admit: Callable[[], T], *, tokenizes: bool) -> T:
        """Call ``admit``, which admits these requests without media, once their lane has room. Return its result.

        ``tokenizes``: whether ``admit`` counts tokens, which takes a millisecond and more, so that it needs a thread.
        Raises PluginBroken for a call that hangs in a prompt renderer; it keeps its thread, and others take its place.
        """
        lane = self._lane_of([text.size for text in texts])
        if lane is self._small and not tokenizes:
            return admit()
        return await self._run_bounded(admit, lane, _LONG_HANGS_S if lane is self._groups else HANGS_S)

    async def run_decoding(self, admit: Callable[[], T], *, waits: bool) -> T:
        """Call ``admit``, which admits a request with media, once its lane has room. Return its result.

        Raises DecodersUnavailable if the lane has no room, unless the request ``waits`` for it, and PluginBroken for a
        call that hangs: decoders have limits of their own, but the prompt renderer reads what they give.
        """
        if not waits and self._media.available_tokens < 1:
            raise DecodersUnavailable("too many submits wait for their media to be decoded")
        return await self._run_bounded(admit, self._media, _LONG_HANGS_S)

    async def _run_bounded(self, admit: Callable[[], T], lane: CapacityLimiter, limit_s: float) -> T:
        async with lane:
            with move_on_after(limit_s, shield=True):
                return await run_sync(admit, limiter=self._threads, abandon_on_cancel=True)
        raise PluginBroken("the prompt renderer hangs: its call is given up", field="model.family")

    def _lane_of(self, sizes: Sequence[int]) -> CapacityLimiter:
        if len(sizes) != 1:
            return self._groups
        return self._small if sizes[0] <= _SMALL_BYTES else self._large
