"""The contents of a request's messages: text stays, media are decoded from base64 and measured behind the wall."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidInput, InvalidRequest, RequestTooLarge
from omni_jobs.media.formats import Kind
from omni_jobs.media.info import ImageInfo
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.parameter_limits import INPUT_PIXELS
from omni_jobs.requests.job_request import AudioPart, ImagePart, Message, Part, TextPart, VideoPart
from omni_jobs.requests.json_body import SLICE, Long

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
    from omni_jobs.settings import Settings

_DECODED_AT_ONCE = 64 << 10  # characters of base64: decoding them holds the interpreter's lock for 0.13 ms


@dataclass(frozen=True, slots=True)
class Medium:
    """A medium of a message, decoded from base64 and not yet measured.

    field  its place in the request, such as ``messages.0.content.1.image_url.url``
    """

    kind: Kind
    data: memoryview
    field: str


class Contents:
    """The converter of one request's messages: it bounds their text, and moves their media to ``media``."""

    def __init__(self, pipeline: Pipeline, settings: Settings, long: Long) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._long = long
        self.text_bytes = 0  # of all messages, once they are converted
        self.media: list[Medium] = []  # in the order of the messages, once they are converted

    def convert(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the messages as JSON. A medium becomes {"type": kind, "media": its index in ``self.media``}.

        Raises InvalidRequest and RequestTooLarge naming the field.
        """
        if len(messages) > self._settings.max_messages:
            raise RequestTooLarge(f"at most {self._settings.max_messages} are taken (max_messages)", field="messages")
        media = sum(not isinstance(part, TextPart) for message in messages for part in _parts(message))
        if media > self._settings.max_media_parts:
            raise RequestTooLarge(f"at most {self._settings.max_media_parts} media (max_media_parts)", field="messages")
        return [self._message(message, f"messages.{number}") for number, message in enumerate(messages)]

    def _message(self, message: Message, field: str) -> dict[str, Any]:
        parts = _parts(message)
        if not any(not isinstance(part, TextPart) or part.text for part in parts):
            raise InvalidRequest("the message is empty", field=f"{field}.content")
        content: str | list[dict[str, Any]]
        if isinstance(message.content, str):
            content = self._text(message.content, f"{field}.content")
        else:
            content = [self._part(message, part, f"{field}.content.{number}") for number, part in enumerate(parts)]
        return {"role": message.role, "content": content}

    def _part(self, message: Message, part: Part, field: str) -> dict[str, Any]:
        kind: Kind
        encoded: str | memoryview
        match part:
            case TextPart():
                return {"type": "text", "text": self._text(part.text, f"{field}.text")}
            case AudioPart():
                kind, encoded, field = "audio", part.input_audio.data, f"{field}.input_audio.data"
            case ImagePart():
                kind, encoded, field = "image", part.image_url.url, f"{field}.image_url.url"
            case VideoPart():
                kind, encoded, field = "video", part.video_url.url, f"{field}.video_url.url"
        encoded = self._long.get(encoded, encoded)
        if kind not in self._pipeline.accepts:
            known = ", ".join(self._pipeline.accepts)
            raise InvalidRequest(f"pipeline {self._pipeline.name} takes no {kind}; it takes: {known}", field=field)
        if message.role != "user":
            raise InvalidRequest("media stand in the user's messages only", field=field)
        self.media.append(Medium(kind, decode_base64(encoded, field, is_url=kind != "audio"), field))
        return {"type": kind, "media": len(self.media) - 1}

    def _text(self, text: str, field: str) -> str:
        fits = len(text) <= self._settings.max_text_bytes  # one that does not is not worth encoding
        self.text_bytes += len(text.encode()) if fits else len(text)
        if self.text_bytes > self._settings.max_text_bytes:
            raise RequestTooLarge(
                f"at most {self._settings.max_text_bytes} bytes of text (max_text_bytes)", field=field
            )
        return text


def measure(
    media: Sequence[Medium],
    wall: MediaWall,
    check_length: Callable[[Sequence[MediaInfo]], None],
    longest_audio_s: float | None,
) -> list[MediaInfo]:
    """Measure all media of a request by their headers, then by decoding as far as needed; return each one's info.

    ``check_length`` raises for a prompt that is too long. It gets the sizes in the headers before any medium is
    decoded, and the decoded sizes if they differ. Of a clip about ``longest_audio_s`` are decoded; None: all.
    Raises InvalidRequest and RequestTooLarge naming the medium's field, DecodersUnavailable, and what ``check_length``
    raises.
    """
    budget = wall.budget()

    def of_each(measure_one: Callable[[Medium], MediaInfo]) -> list[MediaInfo]:
        infos = []
        for medium in media:
            try:
                infos.append(measure_one(medium))
            except InvalidInput as error:
                error.field = medium.field
                raise
        return infos

    headers = of_each(lambda medium: wall.header(medium.kind, medium.data, budget))
    check_length(headers)
    infos = of_each(lambda medium: wall.probe(medium.kind, medium.data, budget, enough_s=longest_audio_s))
    if infos != headers:
        check_length(infos)
    return infos


def check_input_pixels(stage: StageConfig, medium: Medium, info: MediaInfo) -> None:
    """Check a picture against the stage's limit of ``input_pixels``, if it has one.

    Raises RequestTooLarge for a picture beyond it, and InvalidRequest for one that has too few pixels.
    """
    if INPUT_PIXELS not in stage.limits or not isinstance(info, ImageInfo):
        return
    pixels = info.width * info.height
    problem = stage.bounds[INPUT_PIXELS].problem(pixels)
    if problem is not None:
        at_least = stage.limits[INPUT_PIXELS].at_least
        kind = InvalidRequest if at_least is not None and pixels < at_least else RequestTooLarge
        found = f"the picture has {info.width}×{info.height} pixels, and {INPUT_PIXELS} {problem}"
        raise kind(f"{found} (a limit of this pipeline)", field=medium.field)


def _parts(message: Message) -> Sequence[Part]:
    if isinstance(message.content, str):
        return (TextPart(type="text", text=message.content),)
    return message.content


def _begin_in_data_url(url: str | memoryview, field: str, *, is_due: bool) -> int:
    """Return the index at which the base64 of ``data:…;base64,…`` begins; 0 for anything else where it ``is_due`` not.

    Raises InvalidRequest for other URLs.
    """
    start = str(url[:SLICE], "ascii") if isinstance(url, memoryview) else url[:SLICE]
    white = len(start) - len(start.lstrip())
    scheme = start[white : white + 12].partition(":")[0].lower()
    if scheme in ("http", "https"):
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


def decode_base64(encoded: str | memoryview, field: str, *, is_url: bool = False) -> memoryview:
    """Return the bytes that ``encoded`` holds: as base64, or as a data: URL, which ``is_url`` demands.

    White space may stand anywhere, padding may lack, and the alphabet may be that for URLs. Raises InvalidRequest, also
    for no bytes.
    """
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
