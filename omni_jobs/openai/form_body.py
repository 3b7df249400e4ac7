"""``TakenForm``: a form that a view takes, and ``body_of``: a form as JSON would say it."""

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from omni_jobs.errors import InvalidInput, InvalidRequest
from omni_jobs.http.form_reader import Form
from omni_jobs.requests import Upload
from omni_jobs.requests.json_body import parse_body

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_FRACTION = re.compile(r"-?[0-9]{1,19}\.[0-9]{1,19}|-?[0-9]{1,19}(\.[0-9]{1,19})?[eE][+-]?[0-9]{1,2}")
_FLAGS = {"true": True, "false": False}
_PART = re.compile(r"([a-z_]{1,64})((?:\[[^\[\]]{1,64}\]){1,2})")  # of an object, as the stock client nests them
_KEY = re.compile(r"\[([^\[\]]+)\]")
_MOST_JSON_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TakenForm:
    """A form that a view takes.

    fields_of   returns it as JSON would have it, its files as Uploads; raises InvalidRequest and RequestTooLarge naming
                a field
    most_files  how many files are read, a few too many, so that these are refused by their name
    or_json     whether the view takes JSON as well
    """

    fields_of: Callable[[Form], dict[str, Any]]
    most_files: int
    or_json: bool = False


def body_of(form: Form, typed: Container[str], objects: Mapping[str, int]) -> dict[str, Any]:
    """Return a form as JSON would have it, its files as lists of Uploads.

    ``typed``: the fields that are numbers or flags, if they look so; others stay text. ``objects``: those that are
    JSON, or stand in parts such as ``stages[video][fps]``, by the number of keys that a part has. Raises InvalidRequest
    and RequestTooLarge naming a field.
    """
    body: dict[str, Any] = {}
    in_parts: dict[str, Any] = {}
    for name in form.texts:
        text = form.only_text(name) or ""
        part = _PART.fullmatch(name)
        if part is not None and objects.get(part[1]) == part[2].count("["):
            *outer, last = _KEY.findall(part[2])
            within = in_parts.setdefault(part[1], {})
            for key in outer:
                within = within.setdefault(key, {})
            within[last] = typed_value(text)
        elif name in objects:
            body[name] = _json(text, name)
        else:
            body[name] = typed_value(text) if name in typed else text
    for name, files in form.files.items():
        if name in body:
            raise InvalidRequest("this part is given twice", field=f"{name:.64}")
        if not all(files):
            raise InvalidRequest("a file is empty", field=f"{name:.64}")
        body[name] = [Upload(data) for data in files]
    for name, whole in in_parts.items():
        if name in body:
            raise InvalidRequest("given twice: whole, and by its parts", field=name)
        body[name] = whole
    return body


def typed_value(text: str) -> str | int | float | bool:
    """Return what a text says: a number or a flag, if it looks so."""
    if text in _FLAGS:
        return _FLAGS[text]
    if _NUMBER.fullmatch(text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        return parse_body(text.encode(), _MOST_JSON_BYTES, _MOST_JSON_BYTES)
    except InvalidInput as error:
        error.field = name
        raise
