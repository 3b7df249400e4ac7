"""Server-sent events of an answer, of bounded size.

httpx2 has a reader of its own, which replaces bytes that are no UTF-8; here they are left for JSON's reader to refuse.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from workers.runners.remote.client import Answer
from workers.runners.remote.failures import bad_answer

END = b"[DONE]"


async def events(answer: Answer) -> AsyncGenerator[bytes, None]:
    """Yield the data of each event until ``[DONE]``, or until the answer ends.

    Comments, ids, events without data and one that breaks off at the end are left out. Raises ModelError for an answer
    that is no stream of events, and what ``Answer.pieces`` raises.
    """
    if answer.content_type != "text/event-stream":
        raise bad_answer(f"{answer.content_type or 'of no type'}, not text/event-stream")
    rest = bytearray()
    data: list[bytes] = []
    async with aclosing(answer.pieces()) as pieces:
        async for piece in pieces:
            rest += piece
            if b"\n" not in piece and b"\r" not in piece:
                continue
            *lines, last = _lines(rest)
            rest = bytearray(last)
            for line in lines:
                if line:
                    if line.startswith(b"data:"):
                        data.append(line[5:].removeprefix(b" "))
                elif data:
                    event = b"\n".join(data)
                    data.clear()
                    if event == END:
                        await answer.read_end(pieces)
                        return
                    yield event


def _lines(text: bytearray) -> list[bytes]:
    """Return the lines of a text, whose last one may go on. They end in LF, CR LF, or CR that more follows."""
    whole = bytes(text)
    if b"\r" in whole:
        held = whole[-1:] == b"\r"  # an LF may follow it
        whole = (whole[:-1] if held else whole).replace(b"\r\n", b"\n").replace(b"\r", b"\n") + (b"\r" if held else b"")
    return whole.split(b"\n")
