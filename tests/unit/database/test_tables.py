"""JSON in columns comes back exactly as it was given."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.database.tables import decode_json, encode_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_comes_back_as_it_was_and_is_ascii(value: Any) -> None:
    text = encode_json(value)
    assert text.isascii()
    assert decode_json(text) == value == json.loads(text)
    assert repr(decode_json(text)) == repr(value)  # 1 is not 1.0, -0.0 not 0


@pytest.mark.parametrize("value", [math.nan, math.inf, [{"a": -math.inf}], {"none": None, "not": math.nan}])
def test_what_json_has_no_number_for_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_json(value)


def test_what_json_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError):
        encode_json({"a": object()})


def test_a_process_leaves_no_table_to_configure_to_its_first_request() -> None:
    code = """
import omni_jobs.database.database
from omni_jobs.database.tables import Base

mappers = list(Base.registry.mappers)
print(len(mappers), all(mapper.configured for mapper in mappers))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number, configured = done.stdout.split()
    assert int(number) > 15
    assert configured == "True"
