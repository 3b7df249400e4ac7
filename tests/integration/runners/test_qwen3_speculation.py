"""Qwen3-Omni where tokens are guessed: the thinker's text and rows stay the same."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.runners.test_qwen3_omni import ALL, Expected, assert_thought, small
from tests.oracles.ar import quiet
from tests.processes import one_process_an_engine
from tests.services.checkpoint import TinyCheckpoints

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

GUESSES = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}


async def test_the_thinker_is_transformers_own(tiny_qwen3_omnis: TinyCheckpoints, tmp_path: Path) -> None:
    expected = Expected(tiny_qwen3_omnis(0))
    thinker = small(expected.checkpoint, "thinker", tmp_path, speculative_config=GUESSES)
    with one_process_an_engine():
        await thinker.start()
    outputs = await asyncio.gather(
        *(thinker.run(case.prompt(expected.reference), quiet) for case in ALL)  # type: ignore[arg-type]
    )
    await thinker.close()
    for number, output in enumerate(outputs):
        assert_thought(output, expected.of(number))
