"""JSON in payloads means the same to every Python, and to both of the parsers that read it."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.errors import PayloadCorrupt, PayloadTooLarge
from omni_jobs.payloads import header_json
from omni_jobs.payloads.header_json import load


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_how_deep_json_may_be_is_not_pythons_affair(opening: str, closing: str) -> None:
    """Python 3.11's parser gives up at 1,000 levels, 3.12's at 1,500 or more."""
    found = load(opening * 512 + " 0" + closing * 512, "header")
    for _ in range(512):
        (found,) = found.values() if isinstance(found, dict) else found
    assert found == 0
    for levels in (513, 900, 1_200, 100_000):
        with pytest.raises(PayloadTooLarge, match="nested too deeply"):
            load(opening * levels + " 0" + closing * levels, "header")


def test_what_is_deep_and_malformed_is_deep() -> None:
    """Whichever Python's parser meets first."""
    with pytest.raises(PayloadTooLarge, match="nested too deeply"):
        load("[" * 1_200, "header")
    with pytest.raises(PayloadCorrupt, match="not JSON"):
        load('["' + "[" * 1_200 + '\\"", x', "header")
    with pytest.raises(PayloadCorrupt, match="not JSON"):
        load("[" + "[]," * 1_200, "header")


def test_many_that_are_not_deep_are_taken() -> None:
    assert load("[" + ",".join([" []"] * 2_000) + "]", "header") == [[]] * 2_000
    assert load('"' + "[" * 20_000 + '"', "header") == "[" * 20_000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=3),
    max_leaves=8,
)
PIECES = [
    "{}",
    "[]",
    '{"a":1}',
    '{"a":1,"a":2}',
    "-0",
    "-0.0",
    "1e999",
    "1.0e2",
    "1E2",
    "NaN",
    '"\\ud800"',
    '"\\u0061"',
    " ",
]


def outcome(read: object, text: str | bytes) -> object:
    try:
        return repr(read(text, "header"))  # type: ignore[operator]
    except (PayloadCorrupt, PayloadTooLarge) as error:
        return type(error), error.message


@given(VALUES, st.lists(st.sampled_from(PIECES), max_size=3), st.booleans())
def test_what_the_quick_parser_takes_the_strict_one_takes_alike(
    value: object, pieces: list[str], compact: bool
) -> None:
    separators = (",", ":") if compact else None
    for ensure_ascii in (True, False):
        text = json.dumps([value], separators=separators, ensure_ascii=ensure_ascii)
        text = text[:-1] + "".join("," + piece for piece in pieces) + "]"
        for each in (text, text.encode(errors="surrogatepass"), text + "  "):
            assert outcome(load, each) == outcome(header_json._load_strictly, each)


def test_what_our_writer_wrote_is_read_by_the_quick_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_json, "_load_strictly", None)
    value = {"a": [1, -1.5, None, True, "é🙂\n", 2**64 - 1], "b": {"c": {}}}
    text = header_json.dump(value, "header")
    assert load(text, "header") == load(text.encode().ljust(80), "header") == orjson.loads(text) == value
