"""``Upload``: the bytes of a medium, or of a file, as they came to a door and stand in a request."""

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, core_schema

from omni_jobs.errors import InvalidRequest

_HEAD = 256 << 10  # characters in which the head of a data: URL is looked for
_HEAD_OF_LINK = 64  # characters in which its scheme stands
_REMOTE = ("http", "https")
_DECODED_AT_ONCE = 64 << 10  # characters of base64: decoding them holds the interpreter's lock for 0.13 ms


@dataclass(frozen=True, slots=True)
class Upload:
    """The bytes of a medium, or of a file; or their base64 as a client wrote it, decoded only where they are wanted.

    It stands in a ``JobRequest`` where JSON has base64. A door that has the bytes themselves puts them there so.

    data     the bytes, if there is no ``encoded``
    encoded  base64, or a data: URL that holds it, as text or as the ASCII of it
    """

    data: bytes | memoryview = b""
    encoded: str | memoryview | None = None

    def read(self, field: str, *, is_url: bool = False) -> memoryview:
        """Return the bytes. What is encoded is decoded; ``is_url`` demands that it is a data: URL.

        White space may stand anywhere, padding may lack, and the alphabet may be that for URLs. Raises InvalidRequest
        naming ``field``, also for base64 of no bytes.
        """
        return memoryview(self.data) if self.encoded is None else _decoded(self.encoded, field, is_url=is_url)

    @property
    def link(self) -> str | None:
        """The http or https URL that stands in place of the bytes; None: no such URL does."""
        if self.encoded is None:
            return None
        begin = self.encoded[:_HEAD_OF_LINK]
        begin = str(begin, "ascii") if isinstance(begin, memoryview) else begin
        if begin.lstrip().partition(":")[0].lower() not in _REMOTE:
            return None
        return self.encoded if isinstance(self.encoded, str) else str(self.encoded, "ascii")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of a string, of which an Upload is made; an Upload passes as it is."""

        def made(value: Any, check: ValidatorFunctionWrapHandler) -> Upload:
            return value if isinstance(value, cls) else cls(encoded=check(value))

        return core_schema.no_info_wrap_validator_function(made, core_schema.str_schema())


def _begin_in_data_url(url: str | memoryview, field: str, *, is_due: bool) -> int:
    """Return the index at which the base64 of ``data:…;base64,…`` begins; 0 for anything else where it ``is_due`` not.

    Raises InvalidRequest for other URLs.
    """
    start = str(url[:_HEAD], "ascii") if isinstance(url, memoryview) else url[:_HEAD]
    white = len(start) - len(start.lstrip())
    scheme = start[white : white + 12].partition(":")[0].lower()
    if scheme in _REMOTE:
        raise InvalidRequest("remote URLs are not fetched: send the bytes in a data: URL", field=field)
    if scheme != "data" and not is_due:
        return 0
    comma = start.find(",")
    if scheme != "data" or comma < 0 or not start[:comma].rstrip().lower().endswith(";base64"):
        raise InvalidRequest("must be a data: URL, data:<media type>;base64,<data>", field=field)
    return comma + 1


_WHITE = b" \t\r\n\f\v"
_STANDARD = bytes.maketrans(b"-_", b"+/")  # the alphabet for URLs and file names
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_ESCAPE_BEGUN = re.compile(rb"%[0-9A-Fa-f]?\Z")


def _decoded(encoded: str | memoryview, field: str, *, is_url: bool) -> memoryview:
    begin = _begin_in_data_url(encoded, field, is_due=is_url)
    data = bytearray()  # it grows, because a join at the end would hold all threads up while it copies a large medium
    left = escape = b""
    is_padded = False
    try:
        for at in range(begin, len(encoded), _DECODED_AT_ONCE):
            piece = encoded[at : at + _DECODED_AT_ONCE]
            digits = escape + (piece.encode("ascii") if isinstance(piece, str) else bytes(piece))
            escape = b""
            if begin and b"%" in digits:
                begun = _ESCAPE_BEGUN.search(digits)
                escape = begun[0] if begun is not None else b""
                digits = _ESCAPED.sub(_unescaped, digits[: len(digits) - len(escape)])
            digits = left + digits.translate(_STANDARD, _WHITE)
            whole = len(digits) - len(digits) % 4
            left = digits[whole:]
            if is_padded and digits:
                raise binascii.Error("Excess data after padding")
            data += base64.b64decode(digits[:whole], validate=True)
            is_padded = is_padded or digits[:whole].endswith(b"=")
        left = left.rstrip(b"=") + escape
        if left and is_padded:
            raise binascii.Error("Excess data after padding")
        data += base64.b64decode(left + b"=" * (-len(left) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"not base64: {error}", field=field) from None
    if not data:
        raise InvalidRequest("there are no bytes", field=field)
    return memoryview(data)


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes((int(found[1], 16),))
