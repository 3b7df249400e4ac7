"""``BoundedBodies``: bounds the time in which a request's body must come in, and the bytes of all bodies in memory."""

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_jobs.errors import ServerBusy, TooSlow
from omni_jobs.http.process import short_switch_interval, trim
from omni_jobs.settings import Settings

_TRIM_ABOVE_BYTES = 1 << 20
_TRIM_AFTER_S = 5.0
_LARGE_BYTES = 16 << 10  # a larger body takes longer to read than a thread's turn
# After each piece of a large body, of up to 256 KiB, the server pauses once for each large body that comes in.
_PAUSE_S = 0.002
_MOST_PAUSES = 8  # after one piece, so that many clients that send nothing delay nobody for long
_ALWAYS_TAKEN_BYTES = 64 << 10  # of each body, however much is held, so that small submits pass large ones


class BoundedBodies:
    """Middleware that bounds the bodies of requests. Beyond a bound, the route's read raises TooSlow or ServerBusy.

    It gives each request a ``Body``, as ``request.state.body``. All bytes of a body count as held until its request is
    answered. A route that drops bytes while it still reads sets ``is_streamed`` of the Body, and then counts them
    itself with ``hold`` and ``let_go``.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._held = HeldBytes(settings.max_held_body_bytes)
        self._will_trim = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(self._held, self._settings, receive, _content_length(scope))
        scope.setdefault("state", {})["body"] = body
        try:
            await self._app(scope, body.receive, send)
        finally:
            if body.received >= _TRIM_ABOVE_BYTES and not self._will_trim:
                self._will_trim = True
                # By then, what the route made of the body is gone as well.
                asyncio.get_running_loop().call_later(_TRIM_AFTER_S, self._trim)
            body.end()

    def _trim(self) -> None:
        self._will_trim = False
        asyncio.get_running_loop().run_in_executor(None, trim)


@dataclass
class HeldBytes:
    """The bytes that this process holds of all bodies, as each Body counts them up to ``limit``. For one event loop."""

    limit: int
    bytes: int = 0
    large_bodies: set["Body"] = field(default_factory=set)  # those that are still coming in


@dataclass(eq=False, repr=False)
class Body:
    """The body of one request: receives it within the limits of time, and counts its bytes that are held."""

    _all: HeldBytes
    _settings: Settings
    _receive: Receive
    content_length: int | None  # its bytes as the head declares them
    received: int = 0
    is_streamed: bool = False
    _held: int = 0
    _waited_s: float = 0.0
    _waits_since: float | None = None
    _is_complete: bool = False
    _until_answered: ExitStack = field(default_factory=ExitStack)

    @property
    def waited_s(self) -> float:
        """For how many seconds the server has waited for the body's bytes."""
        return self._waited_s + (0.0 if self._waits_since is None else time.monotonic() - self._waits_since)

    async def receive(self) -> Message:
        """Return ASGI's next message, with a part of the body; ``hold`` it unless the body ``is_streamed``.

        Raises TooSlow, and ServerBusy if all bodies would hold too many bytes.
        """
        if self._is_complete:
            return await self._receive()
        if self.content_length is not None and self.received == 0 and not self.is_streamed:
            self._check(self.content_length)
        message = await self._next_message()
        self._is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        self.received += len(message.get("body", b""))
        if not self.is_streamed and self.received > self._held:
            self.hold(self.received - self._held)
        if self.received > _LARGE_BYTES:
            await self._make_way()
        return message

    async def _next_message(self) -> Message:
        """Wait for the next message within the limits. Raises TooSlow."""
        settings = self._settings
        left_s = settings.body_limit_s * (1 + self.received // settings.max_body_bytes) - self._waited_s
        self._waits_since = time.monotonic()
        try:
            async with asyncio.timeout(min(left_s, settings.silence_limit_s)):
                message = await self._receive()
        except TimeoutError:
            self._is_complete = True
            if left_s <= settings.silence_limit_s:
                raise TooSlow(f"the body took longer than {settings.body_limit_s:g} s", field="body") from None
            raise TooSlow(f"nothing of the body came for {settings.silence_limit_s:g} s", field="body") from None
        finally:
            self._waited_s = self.waited_s
            self._waits_since = None
        return message

    async def _make_way(self) -> None:
        """Let large bodies take turns at the event loop, and leave most of it to small requests."""
        large_bodies = self._all.large_bodies
        if self not in large_bodies:
            self._until_answered.enter_context(short_switch_interval())
            large_bodies.add(self)
        if self._is_complete:
            large_bodies.remove(self)
        else:
            await asyncio.sleep(_PAUSE_S * min(len(large_bodies), _MOST_PAUSES))

    def has_room(self, more: int) -> bool:
        """Return whether ``hold`` would accept ``more`` bytes."""
        return self._held + more <= _ALWAYS_TAKEN_BYTES or self._all.bytes + more <= self._all.limit

    def hold(self, more: int) -> None:
        """Count ``more`` bytes as held. Raises ServerBusy, and lets go of this body, if all bodies would hold too many.

        A body's first 64 KiB are always accepted.
        """
        self._check(more)
        self._held += more
        self._all.bytes += more

    def let_go(self, fewer: int) -> None:
        """Count ``fewer`` bytes as held no longer."""
        self._held -= fewer
        self._all.bytes -= fewer

    def end(self) -> None:
        """Let go of the whole body, because its request is answered or its client has left."""
        self.let_go(self._held)
        self._all.large_bodies.discard(self)
        self._until_answered.close()

    def _check(self, more: int) -> None:
        """Raise ServerBusy if ``hold`` would refuse ``more`` bytes, and let go of the body then."""
        if not self.has_room(more):
            self._is_complete = True
            self.let_go(self._held)
            raise ServerBusy(f"requests of {self._all.limit} bytes are being read already", field="body")


def _content_length(scope: Scope) -> int | None:
    value = Headers(scope=scope).get("content-length", "")
    return int(value[:19]) if value.isdecimal() else None  # more digits are a body that is too large in any case
