"""Captures: the rows of hidden states, and of all else, that an engine keeps per request until the worker takes them.

    open → write (per step) → close (the request left the batch) → take | drop

Rows are keyed by absolute position. So chunked prefill and recomputation after preemption write the same rows again.
vLLM may start a step before it knows that the request has ended; that step writes behind the rows that are taken.
A row is bytes, and holds all kinds of what a position has (``workers.runners.ar.row_layout``).
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from workers.runners.ar.kept_prefixes import RowsChange

CAPTURE = "omni_capture"
"""In ``SamplingParams.extra_args``: the key under which the rows are taken."""

CAPTURE_ROWS = "omni_capture_rows"
"""In ``SamplingParams.extra_args``: the largest number of rows that there can be."""


def inputs_file(key: str) -> str:
    """Return the name of the spool file with the embeddings that the first rank of a pipeline captured of a request."""
    return f"{key}inputs"


Bytes = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


@dataclass(slots=True, eq=False)
class Capture:
    """One request's rows uint8 [positions, bytes] in the host's memory, and which of them are present.

    numpy copies the rows as bytes, because for the few kilobytes of a step a call of torch costs more than the copy.
    """

    key: str
    prompt_tokens: int
    zeroed: np.ndarray[tuple[int], np.dtype[np.bool_]]  # [P]: prompt positions whose row has no embedding part
    max_rows: int  # the rows that were reserved
    rows: torch.Tensor | None = None  # uint8 [max_rows, bytes of a row] from the first write on
    positions: torch.Tensor | None = None  # M-RoPE positions [3, P]
    delta: int = 0
    zeroed_end: int = field(init=False)  # no position is zeroed from here on
    _bytes: Bytes = field(init=False)  # of rows
    _present: np.ndarray[tuple[int], np.dtype[np.bool_]] = field(init=False)

    def __post_init__(self) -> None:
        self._present = np.zeros(self.max_rows, dtype=np.bool_)
        zeroed = np.flatnonzero(self.zeroed)
        self.zeroed_end = int(zeroed[-1]) + 1 if len(zeroed) else 0

    def write(self, position: int, step: Bytes, begin: int, end: int) -> None:
        """Copy rows ``begin`` … ``end`` of a step's [n, bytes of a row] to this capture's rows from ``position`` on.

        Rows from ``max_rows`` on are dropped: the request has ended before them.
        """
        if self.rows is None:
            self._allocate(step.shape[1])
        count = max(0, min(end - begin, self.max_rows - position))
        self._bytes[position : position + count] = step[begin : begin + count]
        self._present[position : position + count] = True

    def _allocate(self, row_bytes: int) -> None:
        """Make room for all rows. The system gives it memory page by page, as rows are written."""
        self.rows = torch.empty(self.max_rows, row_bytes, dtype=torch.uint8)
        self._bytes = self.rows.numpy()

    def fill(self, position: int, rows: Bytes) -> int:
        """Copy what was not written of ``rows`` [n, bytes of a row], of which the first is that of ``position``.

        Return the number of rows that were copied.
        """
        if self.rows is None:
            self._allocate(rows.shape[1])
        missing = np.flatnonzero(~self._present[position : position + len(rows)])
        self._bytes[position + missing] = rows[missing]
        self._present[position + missing] = True
        return len(missing)

    def block(self, position: int, count: int) -> Bytes | None:
        """Return a copy of ``count`` rows from ``position`` on; None where one was never written."""
        present = self._present[position : position + count]
        if len(present) < count or not present.all():
            return None
        return self._bytes[position : position + count].copy()

    def missing(self, count: int) -> list[int]:
        """Return the positions below ``count`` whose row was never written."""
        missing = np.flatnonzero(~self._present[:count])
        return [*map(int, missing), *range(self.max_rows, count)]

    @property
    def nbytes(self) -> int:
        """The bytes that this capture's rows take, written or not; 0 before the first write."""
        return 0 if self.rows is None else self.rows.nbytes


class CaptureStore:
    """All captures of one rank, found by request id while the request is in the batch, and by key until taken."""

    def __init__(self, max_closed: int) -> None:
        """Keep at most ``max_closed`` captures of requests that have ended; the oldest are dropped first."""
        self._max_closed = max_closed
        self._by_request: dict[str, Capture] = {}
        self._by_key: dict[str, Capture] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()  # keys

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_request

    def __getitem__(self, request_id: str) -> Capture:
        return self._by_request[request_id]

    def __bool__(self) -> bool:
        """Return True when a request in the batch is being captured."""
        return bool(self._by_request)

    def open(self, request_id: str, capture: Capture) -> None:
        """Keep the capture of a request that enters the batch, under ``request_id`` and ``capture.key``."""
        self._by_request[request_id] = capture
        self._by_key[capture.key] = capture

    def close(self, request_id: str) -> None:
        """Note that the request left the batch; its capture waits for ``take``. Ignore an unknown id."""
        capture = self._by_request.pop(request_id, None)
        if capture is not None and self._by_key.get(capture.key) is capture:
            self._closed[capture.key] = None
            while len(self._closed) > self._max_closed:
                oldest, _ = self._closed.popitem(last=False)
                del self._by_key[oldest]

    def take(self, key: str) -> Capture | None:
        """Return the capture of ``key`` and forget it, even while its request is in the batch. None: there is none."""
        capture = self._by_key.pop(key, None)
        self._closed.pop(key, None)
        if capture is not None:
            for request_id in [name for name, other in self._by_request.items() if other is capture]:
                del self._by_request[request_id]
        return capture

    @property
    def held(self) -> int:
        """The number of captures that have not been taken."""
        return len(self._by_key)

    @property
    def held_bytes(self) -> int:
        """The bytes that the captures take that have not been taken."""
        return sum(capture.nbytes for capture in self._by_key.values())


class KeptRows:
    """The rows of blocks of earlier captures, which a request does not compute that begins like them."""

    def __init__(self) -> None:
        self._blocks: dict[str, Bytes] = {}

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._blocks)

    def change(self, capture: Capture, change: RowsChange) -> int:
        """Fill what is missing of a capture with the rows of earlier ones, keep some of its rows, and forget others.

        A block that is not whole in the capture is not kept. Return the number of rows that were filled.
        """
        filled = 0
        for number, key in enumerate(change.fill):
            begin = number * change.block
            if (block := self._blocks.get(key)) is not None:
                filled += capture.fill(begin, block)
        for number, key in change.keep:
            if (block := capture.block(number * change.block, change.block)) is not None:
                self._blocks[key] = block
        for key in change.forget:
            self._blocks.pop(key, None)
        return filled


CapturePart = tuple[Capture, int, int, int]
"""A capture, the position of its first row, and where its rows begin and end in the step's rows."""


class DeviceMark(Protocol):
    """A mark in a device's queue of work: the part of ``torch.Event`` that ``CopyRing`` uses. Tests fake it."""

    def record(self) -> None:
        """Set the mark behind all work that the device has been given so far."""

    def synchronize(self) -> None:
        """Wait until the device has reached the mark."""


class CopyRing:
    """Copies each step's rows to the host through a ring of reused buffers, once for the whole batch and all kinds.

    A copy's rows are written into their captures when its buffer is needed again or ``flush`` is called, so that the
    step itself does not wait.
    """

    def __init__(
        self,
        max_rows: int,
        buffers: int = 2,
        *,
        allocate: Callable[[int, torch.Tensor], torch.Tensor] = lambda rows, like: torch.empty(
            rows, like.shape[1], dtype=like.dtype, pin_memory=True
        ),
        event: Callable[[torch.device], DeviceMark] = torch.Event,
    ) -> None:
        """Make an empty ring; its buffers are allocated when they are first needed.

        ``max_rows``: the most rows of one step. ``buffers``: 0 for rows that are on the host already, which are written
        into their captures at once. ``allocate(n, like)`` returns a buffer of n rows that are like those of ``like``.
        ``event`` returns a new mark for a device.
        """
        self._max_rows = max_rows
        self._buffers = buffers
        self._allocate = allocate
        self._event = event
        self._ring: deque[_Copy] = deque()  # the oldest first
        self.copies = 0  # since the start

    @property
    def buffer_rows(self) -> int:
        """The number of rows of all buffers together, once each is allocated."""
        return self._buffers * self._max_rows

    def push(self, rows: torch.Tensor, parts: Sequence[CapturePart]) -> None:
        """Start the copy of one step's rows uint8 [n, bytes] to the host.

        Each of ``parts`` is a capture and its rows of them.
        """
        if not self._buffers:
            _write_rows(rows, parts)
            return
        if len(self._ring) < self._buffers:
            copy = _Copy(self._allocate(self._max_rows, rows), self._event(rows.device))
        else:
            copy = self._ring.popleft()
            copy.finish()
        copy.start(rows, parts)
        self._ring.append(copy)
        self.copies += 1

    def flush(self) -> None:
        """Wait for all copies under way and write their rows into their captures."""
        for copy in self._ring:
            copy.finish()


class _Copy:
    """A buffer of the ring, and the step whose rows are copied into it."""

    def __init__(self, host: torch.Tensor, event: DeviceMark) -> None:
        self._host = host
        self._event = event
        self._parts: Sequence[CapturePart] = ()

    def start(self, rows: torch.Tensor, parts: Sequence[CapturePart]) -> None:
        self._host[: len(rows)].copy_(rows, non_blocking=True)
        self._event.record()
        self._parts = parts

    def finish(self) -> None:
        """Wait for the copy and write its rows into their captures; do nothing the second time."""
        if self._parts:
            self._event.synchronize()
            _write_rows(self._host, self._parts)
            self._parts = ()


def _write_rows(rows: torch.Tensor, parts: Sequence[CapturePart]) -> None:
    data: Bytes = rows.numpy()
    for capture, position, begin, end in parts:
        capture.write(position, data, begin, end)
