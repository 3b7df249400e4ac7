from collections.abc import AsyncIterator

import pytest

from tests.services.openai_server import OpenAIServer


@pytest.fixture
async def openai_server() -> AsyncIterator[OpenAIServer]:
    """A server of our own, which answers as the test says."""
    async with OpenAIServer() as server:
        yield server
