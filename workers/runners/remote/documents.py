"""``Documents``: the JSON documents of an answer, which is one of them whole or a stream of server-sent events.

Its first bytes tell which, whatever was asked for and whatever its type says. httpx2 has a reader of events of its own,
which replaces bytes that are no UTF-8; here they are left for JSON's reader to refuse.
"""

from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from omni_jobs.errors import ModelError
from omni_jobs.fetch.give_way import Breath
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.document import Document, read_document
from workers.runners.remote.failures import Setback, bad_answer

_WHITE = b" \t\r\n"
_END = b"[DONE]"
_EVENTS = "text/event-stream"
_FIELDS = b":deir"  # what lines of events begin with: comments, data, event, id, retry
_PINGS = (b"ping", b"heartbeat", b"keep-alive", b"keepalive")
_SHOWN = 200  # bytes of an answer that is none

_MOST_EVENT = 8 << 20  # bytes of one event
_LINE_COST = 32  # bytes that a line of an event counts for beside its own

Pieces = AsyncGenerator[bytes, None]

Event = tuple[bytes, bytes]
"""Its name, which may be empty, and its data."""


class Documents:
    """Iterates over the documents of an answer, once.

    ended  whether the answer said that it is whole: it is one document, or its events ended in ``[DONE]``

    Comments, pings, and events whose data are empty or no object are passed over; the last event need not be closed.
    Raises ModelError for an answer that has no documents, for one that cannot be parsed and for an event above 8 MiB,
    the error that a document tells of (``RemoteClient.check``), and what ``Answer.pieces`` raises.
    """

    def __init__(self, answer: Answer, call: Call) -> None:
        """Take an answer whose body has not been read."""
        self.ended = False
        self._answer = answer
        self._call = call

    async def __aiter__(self) -> AsyncGenerator[Document, None]:
        """Yield the documents, all of which are JSON objects."""
        async with aclosing(self._answer.pieces()) as pieces:
            begin = await _begin(pieces)
            if begin and begin[0] in b"{[":
                document = await self._whole(begin, pieces)
                self.ended = True
                yield document
                return
            async with aclosing(self._streamed(begin, pieces)) as documents:
                async for document in documents:
                    yield document

    async def _whole(self, body: bytearray, pieces: Pieces) -> Document:
        async for piece in pieces:
            body += piece
        try:
            document = await read_document(body)
        except ModelError:
            if self._answer.tells_its_end:
                raise
            raise Setback("the answer is no JSON, or broke off before its end", counts=True) from None
        self._call.client.check(document)
        if not isinstance(document.value, dict):
            raise bad_answer("all of it: no object")
        return document

    async def _streamed(self, begin: bytearray, pieces: Pieces) -> AsyncGenerator[Document, None]:
        is_told = self._answer.content_type == _EVENTS
        reader = EventReader()
        breath = Breath()
        piece: bytes | bytearray | None = begin
        if begin and begin[0] not in _FIELDS and not is_told:
            raise self._unknown(begin)
        while piece is not None:
            for event in reader.feed(piece):
                await breath.take()
                if self._is_end(event):
                    async for _ in pieces:
                        pass
                    return
                if (document := await self._document(event)) is not None:
                    yield document
            piece = await anext(pieces, None)
        last = reader.last()
        if begin and not reader.lines and not is_told:
            raise self._unknown(begin)
        if last is None or self._is_end(last):
            return
        if (document := await self._document(last, is_last=True)) is not None:
            yield document

    def _is_end(self, event: Event) -> bool:
        if event[1].strip(_WHITE).strip(b'"') != _END:
            return False
        self.ended = True
        self._answer.finish()
        return True

    async def _document(self, event: Event, *, is_last: bool = False) -> Document | None:
        """Return an event's document; None for one that says nothing, and for a last one that broke off."""
        name, data = event
        if name in _PINGS or not data.strip(_WHITE):
            return None
        is_error = name == b"error"
        try:
            document = await read_document(data)
        except ModelError:
            if is_last:
                return None
            if not is_error:
                raise
            document = Document(data[:_SHOWN].decode(errors="replace"))
        self._call.client.check(document, is_error=is_error)
        if isinstance(document.value, list) and document.value:
            raise bad_answer("all of it: no object")
        return document if isinstance(document.value, dict) else None

    def _unknown(self, begin: bytearray) -> ModelError:
        said = self._call.client.readable(begin[:_SHOWN].decode(errors="replace"))
        return bad_answer(f"{self._answer.content_type or 'of no type'}, neither JSON nor events: {said}")


async def _begin(pieces: Pieces) -> bytearray:
    """Return the first bytes of an answer, without a mark of their order and white space; none of an empty one."""
    begin = bytearray()
    is_first = True
    async for piece in pieces:
        begin += piece
        if is_first and len(begin) < len(BOM_UTF8) and BOM_UTF8.startswith(begin):
            continue
        if is_first:
            begin = begin.removeprefix(BOM_UTF8)
            is_first = False
        begin = begin.lstrip(_WHITE)
        if begin:
            break
    return begin


class EventReader:
    """Splits what it is fed into events. Lines end in LF, CR LF or CR, of which each ends its line at once.

    lines  whether there was a line that was a comment or a field that is known
    """

    def __init__(self) -> None:
        self.lines = False
        self._rest = bytearray()  # of a line
        self._after_cr = False
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes | bytearray) -> Iterator[Event]:
        """Yield the events that end in a piece; one without data is none. Raises ModelError for one above 8 MiB."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        self._rest += piece
        self._check_size(len(self._rest))
        if b"\n" not in piece and b"\r" not in piece:
            return
        whole = bytes(self._rest)
        if b"\r" in whole:
            self._after_cr = whole.endswith(b"\r")
            whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, last = whole.split(b"\n")
        self._rest = bytearray(last)
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                yield self._event()
            else:
                self._name = b""

    def last(self) -> Event | None:
        """Return the event that the end of all bytes ends; it may be broken off."""
        if self._rest:
            self._take(bytes(self._rest))
        return self._event() if self._data else None

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field in (b"data", b"error"):
            if field == b"error":  # llama.cpp of old has no name for such an event
                self._name = field
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + _LINE_COST
            self._check_size(0)
        elif field == b"event":
            self._name = value.strip().lower()[:64]
        elif field not in (b"", b"id", b"retry"):
            return
        self.lines = True

    def _event(self) -> Event:
        event = self._name, b"\n".join(self._data)
        self._name = b""
        self._data.clear()
        self._size = 0
        return event

    def _check_size(self, more: int) -> None:
        if self._size + more > _MOST_EVENT:
            raise bad_answer(f"an event has more than {_MOST_EVENT} bytes")
