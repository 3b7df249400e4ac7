"""What a decoder owes for any bytes whatever, and how that is checked.

- It answers with a payload, or with a PayloadCorrupt or a PayloadTooLarge that names field and key.
- It takes at most ``PEAK_PER_BYTE`` bytes of memory per byte of the header it accepts to parse
  (so at most that many times ``MAX_HEADER_BYTES``), and ``PEAK_BYTES``.
- It answers within ``LONGEST_S`` of CPU time.
- What it accepts, any reader of safetensors reads as the same tensors; it is encoded to a file
  that decodes to the same payload and encodes to the same bytes.
"""

import time
import tracemalloc
from dataclasses import dataclass
from enum import Enum
from typing import Final

import safetensors

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge
from omni_jobs.payloads import Payload, PromptEmbedsPayload, Tensor
from omni_jobs.payloads.wire_limits import MAX_HEADER_BYTES

__all__ = [
    "LONGEST_S",
    "MAX_BYTES",
    "PEAK_BYTES",
    "PEAK_PER_BYTE",
    "Answer",
    "Broken",
    "Decoder",
    "answer",
    "peak_bound",
]

MAX_BYTES: Final = 4 << 20
PEAK_PER_BYTE: Final = 64
PEAK_BYTES: Final = 64 << 10
LONGEST_S: Final = 2.0
_KEY: Final = "jobs/job-0198/payloads/thinker/1"


class Decoder(Enum):
    """What reads bytes that someone else wrote."""

    PAYLOAD = "payload"
    EMBEDS = "embeds"

    def decode(self, data: bytes) -> Payload | PromptEmbedsPayload:
        if self is Decoder.PAYLOAD:
            return Payload.decode(data, MAX_BYTES, key=_KEY, stage="talker")
        return PromptEmbedsPayload.decode(data, MAX_BYTES, key=_KEY)


class Broken(Exception):
    """A decoder did not keep what it owes."""


@dataclass(frozen=True)
class Answer:
    """What a decoder said, and what it took.

    error    the code of the error; None: accepted
    field    the field it names
    message  its text
    cpu_s    CPU time of the decoder alone
    peak     bytes of memory at most at once; None where it was not measured
    """

    error: str | None
    field: str | None
    message: str
    cpu_s: float
    peak: int | None


def peak_bound(data: bytes) -> int:
    """Bytes of memory that decoding may take."""
    header = min(int.from_bytes(data[:8], "little"), len(data), MAX_HEADER_BYTES)
    return PEAK_BYTES + PEAK_PER_BYTE * header


def answer(decoder: Decoder, data: bytes, *, with_peak: bool = False) -> Answer:
    """Decode and check the answer. Raises Broken."""
    if with_peak:
        tracemalloc.start()
    begin = time.process_time()
    try:
        received = decoder.decode(data)
    except (PayloadCorrupt, PayloadTooLarge) as error:
        cpu_s, peak = _taken(begin)
        found = Answer(error.code, error.field, error.message, cpu_s, peak)
        _check_error(decoder, error)
    except Exception as error:
        _taken(begin)
        raise Broken(f"{type(error).__name__}: {error}") from error
    else:
        cpu_s, peak = _taken(begin)
        found = Answer(None, None, "", cpu_s, peak)
        _check_accepted(decoder, data, received)
    if cpu_s > LONGEST_S and not with_peak:
        raise Broken(f"{cpu_s:.1f} s of CPU time")
    if peak is not None and peak > peak_bound(data):
        raise Broken(f"{peak} bytes of memory, the bound is {peak_bound(data)}")
    return found


def _taken(begin: float) -> tuple[float, int | None]:
    cpu_s = time.process_time() - begin
    if not tracemalloc.is_tracing():
        return cpu_s, None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return cpu_s, peak


def _check_error(decoder: Decoder, error: PayloadError) -> None:
    stage = "talker" if decoder is Decoder.PAYLOAD else None
    if (error.key, error.stage) != (_KEY, stage):
        raise Broken(f"the error names key {error.key} and stage {error.stage}")
    if not error.field or not error.message or (decoder is Decoder.EMBEDS and not _is_embeds(error.field)):
        raise Broken(f"the error names the field {error.field!r}: {error.message!r}")
    try:
        f"{error} {error.field}".encode()
    except UnicodeEncodeError as reason:
        raise Broken(f"the error cannot be written down: {str(error)!a}") from reason
    if len(str(error)) > 1000:
        raise Broken(f"the error has {len(str(error))} characters")


def _is_embeds(field: str) -> bool:
    return field == "prompt_embeds" or field.startswith("prompt_embeds.")


def _check_accepted(decoder: Decoder, data: bytes, received: Payload | PromptEmbedsPayload) -> None:
    _check_readable(data, received)
    encoded = _encoded(received)
    try:
        again = decoder.decode(encoded)
    except PayloadError as error:
        raise Broken(f"accepted, encoded and refused: {error}") from error
    if again != received or _encoded(again) != encoded:
        raise Broken("accepted, and something else when it is encoded and decoded")
    _check_readable(encoded, received)


def _encoded(received: Payload | PromptEmbedsPayload) -> bytes:
    return received.encode() if isinstance(received, PromptEmbedsPayload) else b"".join(received.buffers())


def _check_readable(data: bytes, received: Payload | PromptEmbedsPayload) -> None:
    """That the safetensors library reads the same tensors."""
    try:
        theirs = {
            name: (found["dtype"], tuple(found["shape"]), bytes(found["data"]))
            for name, found in safetensors.deserialize(data)  # type: ignore[no-untyped-call]
        }
    except safetensors.SafetensorError as error:
        raise Broken(f"accepted, but safetensors refuses it: {error}") from error
    ours = {name: (tensor.dtype, tensor.shape, bytes(tensor.data)) for name, tensor in _tensors(received)}
    if theirs != ours:
        raise Broken(
            f"accepted, but safetensors reads {theirs.keys()} where {ours.keys()} were decoded, or other bytes"
        )


def _tensors(received: Payload | PromptEmbedsPayload) -> list[tuple[str, Tensor]]:
    if isinstance(received, PromptEmbedsPayload):
        return [("prompt_embeds", received.embeds)]
    found: list[tuple[str, Tensor]] = []
    if received.prompt_embeds is not None:
        found += _tensors(received.prompt_embeds)
    if received.additional_information is not None:
        for name, entry in received.additional_information.tensors.items():
            if isinstance(entry, Tensor):
                found.append((f"tensors.{name}", entry))
            else:
                members = entry.items() if not isinstance(entry, list) else enumerate(entry)
                found += [(f"tensors.{name}.{member}", tensor) for member, tensor in members]
    return found
