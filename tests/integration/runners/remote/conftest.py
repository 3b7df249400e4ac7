from collections.abc import AsyncIterator

import pytest

from tests.services.openai_server import OpenAIServer
from tests.services.vllm_server import vllm_server, vllm_server_process

__all__ = ["openai_server", "vllm_server", "vllm_server_process"]


@pytest.fixture
async def openai_server() -> AsyncIterator[OpenAIServer]:
    """A server of our own, which answers as the test says."""
    async with OpenAIServer() as server:
        yield server
