"""``LineFilter``: says of each log record what it belongs to, and takes out what no line may hold."""

import logging
import re
import traceback
from urllib.parse import parse_qsl, quote

from omni_jobs.logs.context import current_run, request_id
from omni_jobs.logs.printable import printable
from omni_jobs.logs.secrets import without_secrets
from omni_jobs.logs.texts import without_texts

_ACCESS = "uvicorn.access"  # whose formatter wants the five arguments as they are
_QUERY = re.compile(r"\?(.*)$", re.DOTALL)
_PLAIN_NAMES = re.compile(
    "limit|order|state|status|pipeline|stage|model|wait|detail|after|before|starting_after|include|stream|created_after"
    "|created_before|from_stage|text_from|variant"
)
"""The parameters of a query whose values access lines show. Those of others, such as names of files, are users'."""
_BEGIN_CHARS, _END_CHARS = 12_288, 4_096  # what stays of a longer text


def clean(text: str) -> str:
    """Return the text as a log may show it: of bounded length, without secrets and users' texts, and printable."""
    return printable(without_texts(without_secrets(_cut(text))))


class LineFilter(logging.Filter):
    """Gives each record its ``request_id`` ("-" for none) and its ``run``, and cleans its message and its traceback.

    An error among a record's arguments, and the traceback of one, may quote what a client or a server sent. A record
    with ``lines`` has clean ones already.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, "run"):  # by the same filter of another handler
            return True
        record.request_id = request_id.get() or "-"
        record.run = current_run.get()
        if hasattr(record, "lines"):
            return True
        if record.name == _ACCESS and isinstance(record.args, tuple):
            record.args = _shown(record.args)
        else:
            record.msg, record.args = clean(_message_of(record)), ()
            record.__dict__.pop("color_message", None)  # uvicorn's, which would be shown in its place
        if isinstance(record.exc_info, tuple) and record.exc_info[0] is not None:  # a foreign handler's text is unclean
            record.exc_text = clean("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
        if record.stack_info is not None:
            record.stack_info = clean(record.stack_info)
        return True


def _message_of(record: logging.LogRecord) -> str:
    """Return a record's message. One that its arguments do not fit, or whose argument has no text, harms nobody else.

    ``logging`` would show such arguments on stderr, as they are.
    """
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 — any argument's own
        return f"{record.msg!r}, whose arguments cannot be shown: {type(error).__name__}"


def _cut(text: str) -> str:
    """Return a text's beginning and its last lines, if it is very long: whole words, of which secrets can be known."""
    if len(text) <= _BEGIN_CHARS + _END_CHARS:
        return text
    begin = text[:_BEGIN_CHARS]
    kept = begin[: max(begin.rfind(" "), begin.rfind("\n"), 0)]
    _, _, end = text[-_END_CHARS:].partition("\n")
    return f"{kept} […]\n{end}" if end else f"{kept} […]"


def _shown(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Return the arguments of an access line as they may be shown. No text of a request is looked for in them.

    Each request has such a line, and nearly all stay as they are: a look at all arguments at once tells.
    """
    text = "\n".join([each for each in arguments if isinstance(each, str)])
    if "?" not in text and printable(without_secrets(text)) == text:
        return arguments
    return tuple(_shown_text(each) if isinstance(each, str) else each for each in arguments)


def _shown_text(text: str) -> str:
    return printable(without_secrets(_QUERY.sub(_shown_query, text) if "?" in text else text))


def _shown_query(found: re.Match[str]) -> str:
    pairs = parse_qsl(found[1], keep_blank_values=True)
    if all(_PLAIN_NAMES.fullmatch(name) or not value for name, value in pairs):
        return found[0]
    shown = (quote(value) if _PLAIN_NAMES.fullmatch(name) or not value else "…" for name, value in pairs)
    return "?" + "&".join(f"{quote(name)}={value}" for (name, _), value in zip(pairs, shown, strict=True))
