"""``RemoteRunner``: runs a stage's prompts on an OpenAI-compatible server.

    run: request → answer, as it streams → output
         └ a setback: wait for the server, and again (``Patience``)

It loads nothing and needs no torch. The server may come and go: that ends neither the worker nor a job.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

from omni_jobs.errors import ConfigError, EngineDead, ModelError
from omni_jobs.servers import Server
from workers.runners.remote.call import Call
from workers.runners.remote.chat import chat
from workers.runners.remote.client import RemoteClient
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.failures import Setback
from workers.runners.remote.images import images
from workers.runners.remote.parameters import Endpoint
from workers.runners.remote.patience import Patience
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.recovery import Recovery
from workers.runners.remote.responses import responses
from workers.runners.remote.speech import speech
from workers.runners.remote.transcriptions import transcriptions
from workers.runners.remote.videos import videos
from workers.runners.runner import ProgressSink
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput

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


class RemoteArgs(Protocol):
    """What this runner reads of ``OmniEngineArgs``: its stage, its engine settings, and the settings' servers."""

    @property
    def stage(self) -> str: ...
    @property
    def max_in_flight(self) -> int: ...
    @property
    def engine(self) -> Any: ...
    @property
    def servers(self) -> Mapping[str, Server]: ...


class RemoteRunner:
    """Runs prompts on a server, as many at once as there are slots. Implements ``TellingRunner``."""

    def __init__(self, args: RemoteArgs) -> None:
        """Find the server in the settings; nothing is opened yet. Raises ConfigError when they lack it."""
        engine = args.engine
        if not isinstance(engine, RemoteEngine):
            raise ConfigError("a remote stage has the engine settings of one", field="engine", stage=args.stage)
        server = args.servers.get(engine.server)
        if server is None:
            known = ", ".join(args.servers) or "none"
            raise ConfigError(
                f"no server {engine.server!r} in OMNI_JOBS_SERVERS; known: {known}",
                field="engine.server",
                stage=args.stage,
            )
        self._engine = engine
        self._stage = args.stage
        self._client = RemoteClient(server, engine, args.stage, args.max_in_flight)
        self._recovery = Recovery(self._client.is_back)
        self._runs: set[asyncio.Task[OmniModelRunnerOutput]] = set()
        self._cleaning: set[asyncio.Task[None]] = set()
        self._open = False

    async def start(self) -> None:
        """Open the client, and ask the server for its models once: it need not be there yet, and may lack that route.

        Raises ConfigError for a key or certificates that cannot be used, and for a key that the server refuses.
        """
        await self._client.open()
        self._open = True
        try:
            status = await self._client.greet()
        except Setback as setback:
            logger.warning("%s: server %s: %s; jobs wait for it", self._stage, self._engine.server, setback.reason)
            return
        if status in _REFUSED_KEY:
            await self.close()
            raise ConfigError(
                f"the server answers {status} to the key of OMNI_JOBS_SERVERS",
                field=f"servers.{self._engine.server}",
                stage=self._stage,
            )

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Run one prompt on the server; cancelling it closes the connection at once, so that the server stops, too.

        Raises RemoteUnavailable, which is retryable, when the server is away or busy for longer than the engine
        settings allow, or loses too many answers; ModelError, InvalidRequest and RequestTooLarge for what it refuses,
        ModelError for an answer that cannot be used, and EngineDead only once this runner is closed.
        """
        if not isinstance(prompt, RemotePrompt):
            raise ModelError(f"a remote stage takes no {type(prompt).__name__}", field="kind")
        if not self._open:
            raise EngineDead("the runner was closed", stage=self._stage)
        caller = asyncio.current_task()
        name = None if caller is None else caller.get_name()
        task = asyncio.create_task(self._run(prompt, progress), name=name)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if not self._open and caller is not None and not caller.cancelling():
                raise EngineDead("the runner was closed", stage=self._stage) from None
            raise
        finally:
            del task, caller  # which have the error, whose traceback has this frame, and with it all of the answer

    async def _run(self, prompt: RemotePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        patience = Patience(self._engine, self._recovery, progress)
        call = Call(self._stage, self._client, self._engine, patience, progress, self._clean_up)
        return await _ENDPOINTS[self._engine.endpoint](prompt, call)

    def _clean_up(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    async def close(self) -> None:
        """End the runs in progress, which raise EngineDead, and close all connections. Safe to call twice."""
        self._open = False
        for run in self._runs:
            run.cancel()
        if self._runs:
            await asyncio.wait(set(self._runs))
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
        return self._open
