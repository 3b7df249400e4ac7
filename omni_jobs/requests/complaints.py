"""``words_of``: what pydantic says of a value that it refuses, in the API's words."""

import re
from collections.abc import Mapping
from typing import Any

_WORDS = {
    "extra_forbidden": "unknown key",
    "missing": "is required",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "list_type": "must be an array",
    "tuple_type": "must be an array",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_parsing": "must be a valid integer",
    "float_parsing": "must be a valid number",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "too_short": "takes {min_length} or more items",
    "too_long": "takes {max_length} items at most",
    "string_pattern_mismatch": "must match {pattern}",
    "union_tag_not_found": "must be a string or an array of parts",
}
_VISIBLE = re.compile(r"\^\[!-~\]\{1,([0-9]+)\}\$")  # the pattern of an Idempotency-Key
_OF_PYDANTIC = re.compile(r"^[A-Z]\w* should ")  # "Input should", "String should"


def words_of(complaint: Mapping[str, Any]) -> str:
    """Return the words for one of the complaints of a ValidationError's ``errors()``."""
    visible = _VISIBLE.fullmatch(complaint.get("ctx", {}).get("pattern", ""))
    if visible is not None:
        return f"must be 1 to {visible[1]} visible ASCII characters"
    ours = _WORDS.get(complaint["type"])
    if ours is not None:
        return ours.format(**complaint.get("ctx", {}))
    return _OF_PYDANTIC.sub("must ", complaint["msg"].removeprefix("Value error, "))
