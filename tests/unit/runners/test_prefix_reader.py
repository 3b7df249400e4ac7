"""workers.runners.ar.prefix_reader: what captured requests read of vLLM's prefix cache."""

from typing import Any

import pytest

from omni_jobs.errors import ModelError
from workers.runners.ar.kept_prefixes import KeptPrefixes
from workers.runners.ar.prefix_reader import PrefixReader, RowsMissing

PROMPT: dict[str, Any] = {"prompt_token_ids": [*range(9)]}


def reader() -> PrefixReader:
    return PrefixReader(KeptPrefixes(block=4, kept=8, known=8))


def test_a_second_prompt_reads_what_the_first_kept() -> None:
    prefixes = reader()
    first = prefixes.begin(PROMPT, None)
    with prefixes.taking(first, [9]) as change:
        assert change is not None
        assert [number for number, _ in change.keep] == [0, 1]
    second = prefixes.begin(PROMPT, None)
    assert second is not None
    assert second.kept == 2


def test_rows_that_are_missing_are_told_from_other_errors() -> None:
    prefixes = reader()
    with (
        pytest.raises(RowsMissing),
        prefixes.taking(prefixes.begin(PROMPT, None), [9]),
    ):
        raise ModelError("never computed", field="hidden_states")
    with (
        pytest.raises(ModelError, match="the model's own"),
        prefixes.taking(prefixes.begin({"prompt_token_ids": [*range(20, 29)]}, None), [9]),
    ):
        raise ModelError("the model's own", field="codes")
    after = prefixes.begin(PROMPT, None)
    assert after is not None
    assert after.kept == 0  # what was to be kept is undone


@pytest.mark.parametrize("blocks", [(0, 0), (16, 100)])
def test_no_cache_and_no_room_read_nothing(blocks: tuple[int, int]) -> None:
    prefixes = PrefixReader.of_engine(blocks, row_bytes=1024, capture_bytes=16 * 1024)
    reading = prefixes.begin(PROMPT, None)
    assert reading is None
    with prefixes.taking(reading, [9]) as change:
        assert change is None
    prefixes.fail(reading, [9])
    prefixes.start_anew()
