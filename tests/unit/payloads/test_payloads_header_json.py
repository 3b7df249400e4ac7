"""JSON in payloads means the same to every Python."""

import pytest

from omni_jobs.errors import PayloadCorrupt, PayloadTooLarge
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
