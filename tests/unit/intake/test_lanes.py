"""Lanes: a call that hangs gives its place back, because those behind it are not to blame."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from omni_jobs.errors import PluginBroken
from omni_jobs.intake import lanes
from omni_jobs.intake.lanes import Lanes


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """What the calls that hang wait for."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_renderer_that_hangs_over_media_keeps_no_place_of_theirs(
    end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_LONG_HANGS_S", 0.1)
    one_place = Lanes(1)
    async with asyncio.timeout(30):
        with pytest.raises(PluginBroken, match="its call is given up"):
            await one_place.run_decoding(end.wait, waits=False)
        assert await one_place.run_decoding(lambda: "admitted", waits=False) == "admitted"
