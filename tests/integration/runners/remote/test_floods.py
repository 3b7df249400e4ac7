"""Damaged and endless answers: the job's own error, and nothing for its neighbours (``tests.fuzz``)."""

from tests.fuzz.remote import fuzz, server_process
from tests.fuzz.remote_floods import FLOODS, cost, serve

MIB = 1 << 20
SIZE = 12 * MIB  # above the 8 MiB that one event or one text may have
_HANG_S = 2.0  # the loop stood for 17 s, once


async def test_damaged_answers_are_answers_or_the_jobs_errors() -> None:
    found = await fuzz(600, seed=11)
    assert found.broken == []
    assert found.count == 600
    assert set(found.outcomes) >= {"answered", "model_error", "remote_unavailable"}


async def test_floods_cost_no_more_than_their_bytes() -> None:
    names = {"nested objects as choices", "ones as an event", "lists beside a picture", "escaped text", "tiny chunks"}
    async with server_process(serve) as url:
        for flood in FLOODS:
            if flood.name in names:
                found = await cost(flood, SIZE, url)
                assert found.outcome.startswith("model_error"), flood.name
                assert found.memory < 3 * SIZE + 32 * MIB, flood.name
                assert found.stood_s < _HANG_S, flood.name
