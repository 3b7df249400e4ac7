"""``RemoteRunner``: runs a stage's prompts on an OpenAI-compatible server.

    run: request → answer, as it streams → output
         └ a setback: wait for the server, and again (``Patience``)

It loads nothing and needs no torch. The server may come and go: that ends neither the worker nor a job.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from omni_jobs.errors import ConfigError
from workers.runners.base_runner import BaseRunner
from workers.runners.remote.call import Call
from workers.runners.remote.chat import chat
from workers.runners.remote.client import RemoteClient
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.failures import Setback
from workers.runners.remote.images import images
from workers.runners.remote.parameters import Endpoint
from workers.runners.remote.patience import Patience, Recovery
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.responses import responses
from workers.runners.remote.speech import speech
from workers.runners.remote.transcriptions import transcriptions
from workers.runners.remote.videos import videos
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import OmniModelRunnerOutput

logger = logging.getLogger(__name__)

_ENDPOINTS: Mapping[Endpoint, Callable[[RemotePrompt, Call], Awaitable[OmniModelRunnerOutput]]] = {
    "chat": chat,
    "responses": responses,
    "speech": speech,
    "transcriptions": transcriptions,
    "images": images,
    "videos": videos,
}
_REFUSED_KEY = (401, 403)


class RemoteRunner(BaseRunner[RemotePrompt, RemoteEngine]):
    """Runs prompts on a server, as many at once as there are slots. Implements ``TellingRunner``."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Find the server in the settings; nothing is opened yet. Raises ConfigError when they lack it."""
        super().__init__(args)
        engine = self.engine
        server = args.servers.get(engine.server)
        if server is None:
            known = ", ".join(args.servers) or "none"
            raise ConfigError(
                f"no server {engine.server!r} in OMNI_JOBS_SERVERS; known: {known}",
                field="engine.server",
                stage=args.stage,
            )
        self._client = RemoteClient(server, engine, args.stage, args.max_in_flight, args.guard)
        self._recovery = Recovery(self._client.is_back)
        self._cleaning: set[asyncio.Task[None]] = set()
        self._is_open = False

    async def start(self) -> None:
        """Open the client, and ask the server for its models once: it need not be there yet, and may lack that route.

        Raises ConfigError for a key or certificates that cannot be used, and for a key that the server refuses.
        """
        await self._client.open()
        self._is_open = True
        try:
            status = await self._client.greet()
        except Setback as setback:
            logger.warning("%s: server %s: %s; jobs wait for it", self.args.stage, self.engine.server, setback.reason)
            return
        if status in _REFUSED_KEY:
            await self.close()
            raise ConfigError(
                f"the server answers {status} to the key of OMNI_JOBS_SERVERS",
                field=f"servers.{self.engine.server}",
                stage=self.args.stage,
            )

    async def produce(self, prompt: RemotePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Run one prompt on the server; cancelling it closes the connection at once, so that the server stops, too.

        Raises RemoteUnavailable, which is retryable, when the server is away or busy for longer than the engine
        settings allow, or loses too many answers; ModelError, InvalidRequest and RequestTooLarge for what it refuses,
        ModelError for an answer that cannot be used, and EngineDead only once this runner is closed.
        """
        patience = Patience(self.engine, self._recovery, progress)
        call = Call(self.args.stage, self._client, self.engine, patience, progress, self._clean_up)
        return await _ENDPOINTS[self.engine.endpoint](prompt, call)

    def _clean_up(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    async def close(self) -> None:
        """End the runs in progress, which raise EngineDead, and close all connections. Safe to call twice."""
        self._is_open = False
        self._runs.close()
        await self._runs.settled()
        if self._cleaning:
            await asyncio.wait(set(self._cleaning))
        await self._client.close()

    @property
    def computing(self) -> Collection[int]:
        """None: the server computes, and the engine settings say how long it may be silent."""
        return ()

    @property
    def healthy(self) -> bool:
        """True while open: a server that is away is no reason to end a worker."""
        return self._is_open
