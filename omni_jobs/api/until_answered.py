"""``UntilAnswered``: what a request holds until its answer is sent to the end, or the request ends otherwise."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Annotated

from fastapi import Depends


async def _until_answered() -> AsyncGenerator[ExitStack, None]:
    with ExitStack() as held:
        yield held


UntilAnswered = Annotated[ExitStack, Depends(_until_answered, scope="request")]
"""A stack that closes once the answer was sent, a stream to its end, or the request has failed or was cancelled."""
