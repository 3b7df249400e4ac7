"""The limits on the parts of a payload, which writers obey and readers check; only of the whole a reader decides."""

from typing import Final

MAX_EXTENT: Final = 2**63 - 1
"""The largest offset, and the largest product of a tensor's dimensions and item size, in bytes."""

MAX_HEADER_BYTES: Final = 1 << 20  # the JSON header, which holds manifest, structure and values
MAX_TENSORS: Final = 1024  # in one file, members of lists and dicts included
MAX_RANK: Final = 8  # dimensions of one tensor
MAX_VALUES_BYTES: Final = 256 << 10  # the values as JSON
MAX_VALUES_DEPTH: Final = 16  # lists and objects inside each other in the values
