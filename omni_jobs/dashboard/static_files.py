"""The route of static files: scripts, styles and icons, ours and those of other projects.

``vendor.json`` names the version, the digest and the licence of each file in ``static/vendor``, and a test holds the
files against it. The path of a file holds the version of all of them, so that browsers keep each for ever.
"""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

from omni_jobs.errors import NotFound

STATIC: Final = Path(str(files("omni_jobs.dashboard"))) / "static"
"""Where the files lie."""

_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_BASE_STYLE: Final = "styles/base.css"
_FOR_EVER: Final = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False)


@cache
def static_files() -> dict[str, bytes]:
    """Return the files by their paths below ``STATIC``: 300 kB, read once."""
    found = sorted(path for path in STATIC.rglob("*") if path.is_file())
    return {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in found}


@cache
def _base_style() -> bytes:
    """Return the style of every page, Pico's and the frame's over it.

    They are one file, because with Pico's alone a browser asks for its icons, which the policy does not allow.
    """
    return static_files()["vendor/pico.css"] + b"\n" + static_files()["styles/frame.css"]


@cache
def static_version() -> str:
    """Return the version of all files together: 16 hexadecimal digits of their digest."""
    digest = hashlib.sha256()
    for name, data in static_files().items():
        digest.update(b"%s\0%d\0%s" % (name.encode(), len(data), data))
    return digest.hexdigest()[:16]


@router.get("/static/{version}/{name:path}")
async def get_static_file(request: Request, version: str, name: str) -> Response:
    """Return a file. A page of another version of this server gets the file as it is here, and does not keep it."""
    data = _base_style() if name == _BASE_STYLE else static_files().get(name)
    if data is None:
        raise NotFound(f"there is no file {name!r:.80}")
    etag = f'"{static_version()}"'
    headers = {"Cache-Control": _FOR_EVER if version == static_version() else "no-cache", "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=_TYPES[Path(name).suffix])
