"""The header ``Content-Disposition`` of a download, and the names that a client may give it (RFC 6266)."""

import re
import unicodedata
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from omni_jobs.errors import InvalidRequest

_LONGEST: Final = 200  # bytes of UTF-8, so that the name fits on any filesystem with what a browser adds to it
_SEPARATORS: Final = frozenset("/\\:")  # of directories, drives and streams
_ALWAYS_REFUSED: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})  # control characters, halves of pairs, separators of lines
_JOINERS: Final = frozenset("\u200c\u200d")  # which scripts and emoji need; other format characters hide or turn text
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._ -]*")
_NOT_QUOTED: Final = re.compile(
    r"[^A-Za-z0-9._ -]"
)  # what some browser reads as more than itself: " \ % ; ' and others


def download_name(wanted: str, stored: str, field: str) -> str:
    """Return the name under which a client saves a file that is ``stored`` under another: ``wanted``, if it is not "".

    It always has the suffix of the stored name (.bin if that has none), which is added where it is lacking, because
    the one who writes a link must not decide what a file is taken for. Raises InvalidRequest, naming ``field``, for a
    name that no file should have: with a control character, a separator of paths, or a character that hides or turns
    the order of letters around, with a dot or a space at its beginning or end, or of more than 200 bytes.
    """
    if not wanted:
        return stored
    refused = next((character for character in wanted if _is_refused(character)), None)
    if refused is not None:
        raise InvalidRequest(f"no file's name may have the character U+{ord(refused):04X}", field=field)
    if wanted.strip(". ") != wanted:
        raise InvalidRequest("a file's name neither begins nor ends with a dot or a space", field=field)
    suffix = PurePosixPath(stored).suffix or ".bin"
    name = wanted if wanted.lower().endswith(suffix.lower()) else f"{wanted}{suffix}"
    if len(name.encode()) > _LONGEST:
        raise InvalidRequest(f"a file's name has at most {_LONGEST} bytes", field=field)
    return name


def content_disposition(name: str, *, is_attachment: bool) -> str:
    """Return the header for a file of this name, which a browser shows unless it is an attachment.

    Old clients read ``filename``, of ASCII, with _ for each other character; ``filename*`` has the name as it is, where
    that differs.
    """
    kind = "attachment" if is_attachment else "inline"
    header = f'{kind}; filename="{_NOT_QUOTED.sub("_", name)}"'
    return header if _PLAIN.fullmatch(name) else f"{header}; filename*=UTF-8''{quote(name, safe='')}"


def _is_refused(character: str) -> bool:
    category = unicodedata.category(character)
    return character in _SEPARATORS or category in _ALWAYS_REFUSED or (category == "Cf" and character not in _JOINERS)
