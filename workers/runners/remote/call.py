"""``Call``: one stage run's dealings with its server, which the endpoints share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from workers.runners.remote.client import Answer, RemoteClient
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.parameters import given
from workers.runners.remote.patience import Patience
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.runner import ProgressSink
from workers.stages.types import Progress

T = TypeVar("T")

_SEED_BITS = 31  # llama.cpp and others read a seed as 32 bits


@dataclass(frozen=True, slots=True)
class Call:
    """The client, the settings and the patience of one stage run.

    stage     its name
    clean_up  runs a coroutine in the background, for what has to be undone on the server
    """

    stage: str
    client: RemoteClient
    engine: RemoteEngine
    patience: Patience
    progress: ProgressSink
    clean_up: Callable[[Awaitable[None]], None]

    async def ask(
        self, read: Callable[[Answer], Awaitable[T]], begin: Progress, method: str, path: str, **content: Any
    ) -> T:
        """Report ``begin``, send a request and return what ``read`` makes of its answer.

        ``content`` is that of ``RemoteClient.exchange``. After setbacks it is asked again: ``Patience.until_answered``.
        """

        async def exchange() -> T:
            async with self.client.exchange(method, path, **content) as answer:
                return await read(answer)

        self.progress(begin)
        return await self.patience.until_answered(exchange, begin)

    def body(self, prompt: RemotePrompt, /, **fields: Any) -> dict[str, Any]:
        """Return a request's fields: the model, ``fields``, the prompt's parameters, and the stage config's own.

        A field that is None is left out.
        """
        parameters = given(prompt.parameters, self.engine.endpoint)
        body = {"model": self.engine.model, **fields, **parameters, **self.engine.extra_body}
        return {name: value for name, value in body.items() if value is not None}

    def seed(self, prompt: RemotePrompt) -> int | None:
        """Return the seed to send, of 31 bits; None: send none."""
        return prompt.seed & ((1 << _SEED_BITS) - 1) if self.engine.send_seed else None
