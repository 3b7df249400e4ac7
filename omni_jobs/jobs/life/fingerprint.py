"""Fingerprints: errors of attempts are of one kind if they differ in numbers, ids, URLs and paths alone. Pure."""

import hashlib
import re
from typing import Final

MOST_CHARACTERS: Final = 500
"""So much of a message counts: what comes behind is mostly what a library quotes."""

_VARYING = re.compile(
    r"""
    (?P<url> \b[a-z][a-z0-9+.-]{1,15}://[^\s'"]+ )
    | (?P<path> (?<![\w.]) ~?/[^\s'":,;()]+ )
    | (?P<id> \b(?:job|worker|req|resp|chatcmpl|file)[-_][0-9A-Za-z-]+
        | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b
        | \b(?:sha256:)?(?=[a-f]*[0-9])[0-9a-f]{12,}\b
        | \b0x[0-9a-f]+\b )
    | (?P<number> [0-9]+ (?:[.,_][0-9]+)* (?:e[+-]?[0-9]+)? )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def pattern(message: str) -> str:
    """Return the beginning of a message with a word in place of each number, id, URL and path: ``<number>``."""
    return _VARYING.sub(lambda found: f"<{found.lastgroup}>", message[:MOST_CHARACTERS])


def fingerprint(code: str, stage: str, message: str) -> str:
    """Return the digest of an error's code, stage and pattern, 128 bits in hex."""
    whole = "\0".join((code, stage, pattern(message)))
    return hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
