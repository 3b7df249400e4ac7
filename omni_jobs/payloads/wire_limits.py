"""The limits on the size of a payload, as a whole and in its parts."""

from dataclasses import dataclass
from typing import Final

MAX_EXTENT: Final = 2**63 - 1
"""The largest offset, and the largest product of a tensor's dimensions and item size, in bytes."""


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """The limits that a reader of payloads sets. A writer obeys the defaults, so that any reader takes its header.

    max_bytes          the whole file, in bytes
    max_header_bytes   the JSON header, which holds manifest, structure and values, in bytes
    max_tensors        the number of tensors in one file, members of lists and dicts included
    max_rank           the number of dimensions of one tensor
    max_values_bytes   the values as JSON, in bytes
    max_values_depth   the number of lists and objects inside each other in the values
    """

    max_bytes: int
    max_header_bytes: int = 1 << 20
    max_tensors: int = 1024
    max_rank: int = 8
    max_values_bytes: int = 256 << 10
    max_values_depth: int = 16


WRITER_LIMITS: Final = PayloadLimits(max_bytes=MAX_EXTENT)
