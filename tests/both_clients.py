"""``of_kind``: either client with the methods of ``Client``, so that one test tries both."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

from omni_jobs.client import AsyncClient, Client

Kind = Literal["Client", "AsyncClient"]
KINDS: dict[Kind, type[Client] | type[AsyncClient]] = {"Client": Client, "AsyncClient": AsyncClient}


class Awaited:
    """An AsyncClient whose methods wait: a coroutine is run, and an asynchronous iterator is read as it is asked."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            given = getattr(self._client, name)(*args, **kwargs)
            return self._iterator(given) if isinstance(given, AsyncIterator) else self._runner.run(given)

        return method

    def _iterator(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        async def next_items() -> list[Any]:
            try:
                return [await anext(items)]
            except StopAsyncIteration:
                return []

        while found := self._runner.run(next_items()):
            yield from found


@contextmanager
def of_kind(kind: Kind, url: str, **options: Any) -> Iterator[Client]:
    """A client of this kind, of the server at ``url``, that is called as ``Client`` is."""
    if kind == "Client":
        with Client(url, **options) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        asynchronous = AsyncClient(url, **options)
        try:
            yield cast(Client, Awaited(asynchronous, runner))
        finally:
            runner.run(asynchronous.close())
