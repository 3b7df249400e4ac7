"""vLLM's AsyncLLM: its start, what it is asked, and what its errors mean here."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.outputs import RequestOutput
from vllm.plugins import load_general_plugins
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from omni_jobs.errors import ConfigError, EngineDead, ModelError, OmniJobsError, OutOfMemory
from workers.vllm_hooks import check_hooks, register

__all__ = ["Engine", "ParentThread"]

T = TypeVar("T")

_CLOSE_S = 10.0  # then its processes are killed
_LIVENESS_S = 1.0
_LOADING_PLUGINS = threading.Lock()


class ParentThread:
    """A thread that starts processes and lives as long as they may.

    An engine's processes ask the kernel to be killed when the thread that started them
    ends (``workers.vllm_hooks``). A thread of a pool, or of an event loop that is closed,
    would take them with it.
    """

    def __init__(self) -> None:
        self._closed = threading.Event()

    def call(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises, called on the thread; once."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 — the caller raises it
                future.set_exception(error)
            self._closed.wait()

        threading.Thread(target=run, name="engine-parent", daemon=True).start()
        return future.result()

    def close(self) -> None:
        self._closed.set()


class Engine:
    """One AsyncLLM. Every error that leaves it is one of ours."""

    def __init__(self, llm: AsyncLLM, parent: ParentThread) -> None:
        self._open: AsyncLLM | None = llm
        self._parent = parent

    @classmethod
    def start(cls, args: Mapping[str, Any]) -> Engine:
        """Load the model; blocks for as long as that takes.

        ``args`` are those of AsyncEngineArgs, but ``mm_processor_cache_gb``, which is always 0.
        Raises ConfigError for what vLLM refuses and EngineDead when its process ends during the start.
        """
        check_hooks()
        # vLLM marks its plugins as loaded before it loads them, and loads them once: of two
        # engines that start at once in one process, the second would not find our model classes.
        with _LOADING_PLUGINS:
            load_general_plugins()  # type: ignore[no-untyped-call]
            register()
        # The hooks exist in vLLM's V1 model runner alone, and vLLM takes the choice from nowhere else.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        parent = ParentThread()
        try:
            # vLLM keeps media in two caches, here and in the engine, and sends none that it believes to be there.
            # They part when a request is rendered long before it enters the engine, and a miss ends a request.
            engine_args = AsyncEngineArgs(**{**args, "mm_processor_cache_gb": 0})
            _refuse(engine_args)
            return cls(parent.call(lambda: AsyncLLM.from_engine_args(engine_args)), parent)
        except BaseException as error:
            parent.close()
            if isinstance(error, ValueError | TypeError | VLLMClientError):
                raise ConfigError(f"vLLM refuses these engine arguments: {error}") from error
            if isinstance(error, RuntimeError | EngineDeadError):
                raise EngineDead(f"the engine did not start: {error}") from error
            raise

    @property
    def _llm(self) -> AsyncLLM:
        if self._open is None:
            raise EngineDead("the engine is closed")
        return self._open

    @property
    def hf_config(self) -> Any:
        """The config of the model that runs, Transformers' own class."""
        return self._llm.model_config.hf_config

    @property
    def max_model_len(self) -> int:
        return int(self._llm.model_config.max_model_len)

    @property
    def healthy(self) -> bool:
        return self._open is not None and not self._open.errored

    async def generate(self, prompt: Any, sampling: SamplingParams, request_id: str) -> AsyncGenerator[RequestOutput]:
        """The outputs of one request as they come. Closing the iterator aborts it."""
        try:
            async for output in self._llm.generate(prompt, sampling, request_id):
                yield output
        except VLLMClientError as error:
            raise ModelError(str(error), field=getattr(error, "parameter", None)) from error
        except EngineDeadError as error:
            raise EngineDead() from error
        except EngineGenerateError as error:
            raise _cause(error) from error
        except ValueError as error:
            raise ModelError(str(error)) from error

    async def render(self, prompt: Any) -> Any:
        """The prompt as ``generate`` takes it as well, tokenized and its media processed. Raises ModelError.

        It may be generated from at any later time: it holds all of its media, whatever the engine had before.
        """
        llm = self._llm
        try:
            (found,) = await llm.renderer.render_cmpl_async([parse_model_prompt(llm.model_config, prompt)])
        except (VLLMClientError, ValueError) as error:
            raise ModelError(str(error), field=getattr(error, "parameter", None)) from error
        return found

    async def abort(self, request_id: str) -> None:
        """End a request wherever it is; unknown ones are ignored."""
        await self._llm.abort(request_id)

    async def call(self, method: str, *args: Any) -> list[Any]:
        """One answer per rank of the worker's ``method``. Raises EngineDead."""
        asked: asyncio.Future[list[Any]] = asyncio.ensure_future(self._llm.collective_rpc(method, args=args))
        try:
            # vLLM leaves a question unanswered for ever when its engine dies over it.
            while not (await asyncio.wait({asked}, timeout=_LIVENESS_S))[0]:
                if not self.healthy:
                    raise EngineDead()
            return asked.result()
        except EngineDeadError as error:
            raise EngineDead() from error
        finally:
            asked.cancel()

    async def close(self) -> None:
        """End the engine's processes; returns when they are gone. Safe to call twice."""
        llm, self._open = self._open, None
        if llm is None:
            return
        if llm.output_handler is not None:
            # It takes the end of its processes for their death, and logs it, unless it ends before them.
            llm.output_handler.cancel()
            await asyncio.wait([llm.output_handler])
        await asyncio.to_thread(self._shut_down, llm)

    def _shut_down(self, llm: AsyncLLM) -> None:
        try:
            llm.shutdown(timeout=_CLOSE_S)
        finally:
            self._parent.close()
        # vLLM leaves its ZMQ context to the garbage collector, which warns of it.
        core: Any = llm.engine_core
        core.resources.ctx.destroy(linger=0)


def _refuse(args: AsyncEngineArgs) -> None:
    """What the hooks cannot serve. Raises ConfigError."""
    if args.speculative_config is not None:
        raise ConfigError("AR stages do not support speculative decoding", field="engine.speculative_config")
    if args.pipeline_parallel_size > 1:
        raise ConfigError("AR stages do not support pipeline parallelism", field="engine.pipeline_parallel_size")


def _cause(error: EngineGenerateError) -> OmniJobsError:
    cause = error.__cause__
    if isinstance(cause, MemoryError):
        return OutOfMemory()
    if isinstance(cause, OmniJobsError):
        return cause
    return ModelError(f"the engine could not take this input: {cause}")
