"""A short run of damaged media through the wall: nothing of the server breaks."""

import time

import pytest

from tests.fuzz.media import damaged, fuzz, seeds


@pytest.mark.long
def test_a_short_run() -> None:
    found = fuzz(1_500, seed=20260102, until=time.monotonic() + 15)
    assert found.broken == []
    assert found.count > 100
    assert found.outcomes["accepted"] > 20
    assert found.outcomes["invalid_request"] > 40
    assert found.outcomes["killed"] == found.outcomes["time"] == 0, [why for why, _ in found.findings]
    assert 0 < found.decoder_bytes < 1 << 30


def test_an_input_is_drawn_from_the_seed_and_its_number_alone() -> None:
    corpus = seeds()
    backwards = {number: damaged(corpus, 7, number) for number in reversed(range(200))}
    assert [damaged(corpus, 7, number) for number in range(200)] == [backwards[number] for number in range(200)]
    assert damaged(corpus, 7, 0) != damaged(corpus, 8, 0)
