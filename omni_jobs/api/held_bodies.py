"""Bodies on their way in: how long one may take, and how many bytes of all are held in memory at once."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_jobs.api.allocator import trim
from omni_jobs.api.switch_interval import TURNS
from omni_jobs.errors import ServerBusy, TooSlow
from omni_jobs.settings import Settings

__all__ = ["Body", "BoundedBodies"]

_LARGE = 1 << 20
_TRIM_AFTER_S = 5.0
_COMPUTED = 16 << 10  # bytes that take some time to read, and more than one turn of a thread
_PAUSE_S = 0.002  # between two pieces, of up to 256 KiB, of what is larger; times the number of bodies that come in,
_MOST_PAUSES = 8  # but no more than this: many clients that send nothing hold nobody up
_ALWAYS_TAKEN = 64 << 10  # of each body, however much is held: small submits pass large ones


class BoundedBodies:
    """Middleware. What it refuses is raised where the route reads its body.

    A body counts as held until its request is answered. A route that lets go of it while it still reads sets
    ``is_streamed`` of its ``Body``, which is ``request.state.body``, and says what it holds.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._held = _Held(settings.max_held_body_bytes)
        self._trims = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = Body(self._held, self._settings, receive, _declared(scope))
        scope.setdefault("state", {})["body"] = body
        try:
            await self._app(scope, body.receive, send)
        finally:
            self._trim_later(body.received)
            body.end()

    def _trim_later(self, received: int) -> None:
        """Once, some seconds after a large body: what was made of it is gone by then."""
        if received >= _LARGE and not self._trims:
            self._trims = True
            asyncio.get_running_loop().call_later(_TRIM_AFTER_S, self._trim)

    def _trim(self) -> None:
        self._trims = False
        asyncio.get_running_loop().run_in_executor(None, trim)


class _Held:
    """Bytes of bodies that this process holds. Of one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.coming_in = 0  # bodies above _COMPUTED bytes of which more is to come


class Body:
    """One request's body: counted until it is released, and waited for within limits."""

    def __init__(self, held: _Held, settings: Settings, receive: Receive, declared: int | None) -> None:
        """``declared``: its bytes, where its head says how many. They count once they have come, and not before."""
        self._all = held
        self._settings = settings
        self._receive = receive
        self._held = 0
        self._declared = declared
        self.received = 0
        self._waited_s = 0.0
        self._is_done = False
        self._has_short_turns = False
        self._is_coming_in = False
        self.is_streamed = False

    async def receive(self) -> Message:
        """ASGI's ``receive``. Raises TooSlow and ServerBusy while the body comes in."""
        if self._is_done:
            return await self._receive()
        settings = self._settings
        if self._declared is not None and self.received == 0 and not self.is_streamed:
            self._check(self._declared)
        left_s = settings.body_limit_s * (1 + self.received // settings.max_body_bytes) - self._waited_s
        began = time.monotonic()
        try:
            async with asyncio.timeout(min(left_s, settings.silence_limit_s)):
                message = await self._receive()
        except TimeoutError:
            self._is_done = True
            if left_s <= settings.silence_limit_s:
                raise TooSlow(f"the body took longer than {settings.body_limit_s:g} s", field="body") from None
            raise TooSlow(f"nothing of the body came for {settings.silence_limit_s:g} s", field="body") from None
        self._waited_s += time.monotonic() - began
        self._is_done = message["type"] != "http.request" or not message.get("more_body", False)
        size = len(message.get("body", b""))
        self.received += size
        if not self.is_streamed and self.received > self._held:
            self.hold(self.received - self._held)
        if self.received > _COMPUTED:
            await self._give_way()
        return message

    async def _give_way(self) -> None:
        """Large bodies take turns at the event loop, and leave most of it to whoever asks for little."""
        if not self._has_short_turns:
            self._has_short_turns = True
            TURNS.shorten()
        if self._is_done:
            self._stop_coming_in()
            return
        if not self._is_coming_in:
            self._is_coming_in = True
            self._all.coming_in += 1
        await asyncio.sleep(_PAUSE_S * min(self._all.coming_in, _MOST_PAUSES))

    def _stop_coming_in(self) -> None:
        if self._is_coming_in:
            self._is_coming_in = False
            self._all.coming_in -= 1

    def has_room(self, more: int) -> bool:
        """Whether ``hold`` would take so many bytes more."""
        return self._held + more <= _ALWAYS_TAKEN or self._all.bytes + more <= self._all.limit

    def hold(self, more: int) -> None:
        """So many bytes more are in memory. Raises ServerBusy where that is too much of all together."""
        self._check(more)
        self._held += more
        self._all.bytes += more

    def _check(self, more: int) -> None:
        """Raises ServerBusy where so many bytes more would be too much of all together."""
        if not self.has_room(more):
            self._is_done = True
            self.release()
            raise ServerBusy(f"requests of {self._all.limit} bytes are being read already", field="body")

    def let_go(self, fewer: int) -> None:
        """So many bytes fewer are in memory."""
        self._held -= fewer
        self._all.bytes -= fewer

    def release(self) -> None:
        """Nothing of it is in memory any longer."""
        self._all.bytes -= self._held
        self._held = 0

    def end(self) -> None:
        """Its request is answered."""
        self.release()
        self._stop_coming_in()  # where its client left, or was refused
        if self._has_short_turns:
            self._has_short_turns = False
            TURNS.restore()


def _declared(scope: Scope) -> int | None:
    found = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(found[0]) if len(found) == 1 and found[0].isdigit() and len(found[0]) <= 18 else None
