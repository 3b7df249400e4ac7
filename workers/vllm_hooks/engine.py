"""``Engine`` wraps vLLM's AsyncLLM: it starts, calls and closes it, and turns its errors into ours."""

from __future__ import annotations

import asyncio
import atexit
import gc
import multiprocessing
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import workers.vllm_hooks.quick_import  # noqa: F401 — before all other imports of vLLM

# isort: split
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.plugins import load_general_plugins
from vllm.pooling_params import PoolingParams
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerFactory

from omni_jobs.errors import ConfigError, EngineDead, ModelError, OmniJobsError, OutOfMemory
from workers.parent_death import end_with_parent
from workers.vllm_hooks import ENGINE_PID, register
from workers.vllm_hooks.engine_arguments import check_engine_arguments
from workers.vllm_hooks.hidden_layers import check_layers
from workers.vllm_hooks.hooks import check_hooks
from workers.vllm_hooks.speculation import check_speculation
from workers.vllm_hooks.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from vllm.config import ModelConfig

_CLOSE_S = 10.0  # then the engine's processes are killed
_LIVENESS_S = 1.0  # between two checks of an engine that has not answered a call
_PLUGIN_LOCK = threading.Lock()

_run_engine_core = EngineCoreProc.run_engine_core


def run_engine_core(*args: Any, **kwargs: Any) -> None:
    """Run an engine's process as vLLM does, but let the kernel end it with its parent from its first moment.

    ``register`` would be too late for that: vLLM calls it only after the parent has answered the new process, which
    waits up to 5 minutes for that answer. ``Engine.start`` puts this function in the place of vLLM's.
    """
    if (parent := multiprocessing.parent_process()) is not None:
        end_with_parent(parent.pid or 0)
    os.environ[ENGINE_PID] = str(os.getpid())  # for ``register`` in the processes of the ranks
    # What is imported stays. To go through it again and again took a fifth of the processor time of a start.
    gc.freeze()
    try:
        _run_engine_core(*args, **kwargs)
    except SystemExit as end:
        if end.code:
            raise
    # vLLM has closed all it had, and multiprocessing will have. To free object by object what is left takes seconds.
    atexit.register(os._exit, 0)


class Engine:
    """One started engine of vLLM (AsyncLLM), for a runner. It turns vLLM's known errors into omni_jobs.errors."""

    def __init__(self, llm: AsyncLLM, parent: ThreadPoolExecutor) -> None:
        """Wrap a started engine. ``parent`` is the thread whose end makes the kernel kill the engine's processes."""
        self._open: AsyncLLM | None = llm
        self._parent = parent
        self._adapters: dict[str, LoRARequest] = {}
        self._vocabulary: Vocabulary | None = None

    @classmethod
    def start(
        cls,
        args: Mapping[str, Any],
        *,
        measures: bool = False,
        check_class: Callable[[type[Any]], None] | None = None,
    ) -> Engine:
        """Load the model and return its engine; block until it is loaded.

        ``args`` are those of AsyncEngineArgs; ``mm_processor_cache_gb`` is always 0. ``measures``: keep vLLM's metrics
        in prometheus-client's own registry, which has those of the newest engine of a process. ``check_class`` gets
        the model's class before any process starts, and may raise ConfigError.

        Raise ConfigError for arguments that are not of vLLM's types, or that vLLM or the hooks refuse, or when a hook
        has moved, and EngineDead when its process ends during the start.
        """
        check_hooks()
        # vLLM loads plugins once, and marks them as loaded before it does. So without the lock, the second of two
        # engines that start at once in one process would not find our model classes.
        with _PLUGIN_LOCK:
            load_general_plugins()  # type: ignore[no-untyped-call]
            register()
        EngineCoreProc.run_engine_core = staticmethod(run_engine_core)
        # Only vLLM's V1 model runner has the hooks, and only this variable selects it.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        # The thread of an event loop or of a shared pool may end before ``close``.
        parent = ThreadPoolExecutor(1, thread_name_prefix="engine-parent")
        try:
            # vLLM caches media twice, here and in the engine, and does not send media that it believes cached there.
            # The caches diverge when a request is rendered long before it enters the engine; then the request fails.
            engine_args = AsyncEngineArgs(**check_engine_arguments({**args, "mm_processor_cache_gb": 0}))
            _refuse(engine_args, check_class)
            loggers: list[StatLoggerFactory] = [PrometheusStatLogger] if measures else []
            llm = parent.submit(AsyncLLM.from_engine_args, engine_args, stat_loggers=loggers).result()
            return cls(llm, parent)
        except BaseException as error:
            parent.shutdown(wait=False)
            if isinstance(error, ValueError | TypeError | NotImplementedError | VLLMClientError):
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
    def model_config(self) -> ModelConfig:
        """vLLM's configuration of the model. Raise EngineDead once closed."""
        return self._llm.model_config

    @property
    def prefix_blocks(self) -> tuple[int, int]:
        """The tokens of a block of vLLM's prefix cache, and how many blocks there are; (0, 0) if it keeps none."""
        config = self._llm.vllm_config.cache_config
        return (int(config.block_size), int(config.num_gpu_blocks or 0)) if config.enable_prefix_caching else (0, 0)

    @property
    def healthy(self) -> bool:
        """Whether the engine is open and its processes have not failed."""
        return self._open is not None and not self._open.errored

    @property
    def tokenizer(self) -> Any:
        """vLLM's tokenizer of the engine. Raise EngineDead once closed."""
        return self._llm.get_tokenizer()

    async def vocabulary(self) -> Vocabulary:
        """Return the tokens of the engine's tokenizer, read once. Raise ModelError for a tokenizer of no known kind."""
        if self._vocabulary is None:
            tokenizer, size = self.tokenizer, self.model_config.get_vocab_size()
            self._vocabulary = await asyncio.to_thread(Vocabulary.of, tokenizer, size)
        return self._vocabulary

    async def load_adapters(self, directories: Mapping[str, str]) -> None:
        """Load LoRA adapters (name → absolute directory) into the engine; ``generate`` takes their names.

        Raise ConfigError for an adapter that does not fit the model, and EngineDead.
        """
        for name, directory in directories.items():
            adapter = LoRARequest(name, len(self._adapters) + 1, directory)
            try:
                await self._llm.add_lora(adapter)
            except EngineDeadError as error:
                raise EngineDead() from error
            except Exception as error:  # vLLM raises no other class for what the engine's process refuses
                raise ConfigError(f"vLLM cannot load it: {error}", field=f"engine.lora_modules.{name}") from error
            self._adapters[name] = adapter

    async def generate(
        self, prompt: Any, sampling: SamplingParams, request_id: str, adapter: str | None = None
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the outputs of one request as they come, of ``sampling.output_kind``. Closing the iterator aborts it.

        ``adapter`` is the name of a loaded LoRA adapter; None: the model as it is. The iteration raises ModelError,
        OutOfMemory or another error of the request, and EngineDead.
        """
        if adapter is not None and adapter not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise ModelError(f"the engine has no LoRA module {adapter!r}; it has {known}", field="lora")
        lora = None if adapter is None else self._adapters[adapter]
        with _our_errors():
            async for output in self._llm.generate(prompt, sampling, request_id, lora_request=lora):
                yield output

    async def embed_tokens(
        self, prompt_token_ids: Sequence[int], request_id: str, pictures: Sequence[Image.Image] = ()
    ) -> torch.Tensor:
        """Return the last hidden states of a prompt, a row for each token: [P, H], on the CPU, not normalized.

        ``pictures``, RGB, stand where the prompt has placeholders, each of which becomes the tokens of its picture. The
        engine must have been started with the task ``token_embed``. Cancelling the call aborts the request. Raise
        ModelError, OutOfMemory or another error of the request, and EngineDead.
        """
        params = PoolingParams(task="token_embed", use_activation=False)
        prompt: Any = {"prompt_token_ids": list(prompt_token_ids)}
        if pictures:  # they are prepared on a thread of vLLM's
            prompt = await self.render({**prompt, "multi_modal_data": {"image": list(pictures)}})
        with _our_errors():
            async with aclosing(self._llm.encode(prompt, params, request_id)) as outputs:
                async for output in outputs:
                    if output.finished:
                        rows: torch.Tensor = output.outputs.data
                        return rows
        raise EngineDead("the engine gave the request up")

    async def render(self, prompt: Any) -> Any:
        """Tokenize the prompt and process its media; return a mapping for ``generate``. Raise ModelError.

        The result contains all of its media, so it may be used at any later time.
        """
        llm = self._llm
        try:
            (rendered,) = await llm.renderer.render_cmpl_async([parse_model_prompt(llm.model_config, prompt)])
        except (VLLMClientError, ValueError) as error:
            raise ModelError(str(error), field=getattr(error, "parameter", None)) from error
        return rendered

    async def abort(self, request_id: str) -> None:
        """End a request, waiting or running; ignore an unknown id. Raise EngineDead once closed."""
        await self._llm.abort(request_id)

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of vLLM's worker; return one answer per rank. Raise EngineDead, or Exception when it raised."""
        answers: asyncio.Future[list[Any]] = asyncio.ensure_future(self._llm.collective_rpc(method, args=args))
        try:
            # vLLM never answers a call during which its engine dies.
            while not (await asyncio.wait({answers}, timeout=_LIVENESS_S))[0]:
                if not self.healthy:
                    raise EngineDead()
            return answers.result()
        except EngineDeadError as error:
            raise EngineDead() from error
        finally:
            answers.cancel()

    async def answered(self) -> None:
        """Return once all ranks have answered: what was aborted before is dropped. Raise EngineDead."""
        await self.call("check_health")

    async def close(self) -> None:
        """End the engine's processes and return when they are gone. May be called twice."""
        llm, self._open = self._open, None
        if llm is None:
            return
        if llm.output_handler is not None:
            # The handler would log the end of its processes as their death, so end it before them.
            llm.output_handler.cancel()
            await asyncio.wait([llm.output_handler])
        core: Any = llm.engine_core
        await asyncio.to_thread(self._shut_down, llm)
        # vLLM leaves its ZMQ context to the garbage collector, which then warns; and to end a context is to wait for
        # its sockets. vLLM closes them on this thread a little later, or, after a death, not all of them.
        for socket in (core.resources.input_socket, core.resources.output_socket):
            if socket is not None and not socket.closed:
                socket.close(linger=0)
        await asyncio.to_thread(core.resources.ctx.destroy, linger=0)
        del llm, core
        gc.collect()  # AsyncLLM lies in reference cycles, and its __del__ fails once the interpreter is ending

    def _shut_down(self, llm: AsyncLLM) -> None:
        try:
            llm.shutdown(timeout=_CLOSE_S)
        finally:
            self._parent.shutdown(wait=False)


def _refuse(args: AsyncEngineArgs, check_class: Callable[[type[Any]], None] | None) -> None:
    """Raise ConfigError for arguments that the hooks do not support, a layer that the model lacks, a draft of another.

    vLLM would find out about the last in the engine's process. The checkpoint's config is read if one of them is asked
    for, and for both at once.
    """
    read = cache(args.create_model_config)
    check_layers(args, read)
    check_speculation(args, read)
    if check_class is not None:
        from vllm.model_executor.model_loader.utils import get_model_cls  # loads long, and few engines need it

        check_class(get_model_cls(read()))


@contextmanager
def _our_errors() -> Iterator[None]:
    """Context manager: turn vLLM's errors of one request into ours."""
    try:
        yield
    except VLLMClientError as error:
        raise ModelError(str(error), field=getattr(error, "parameter", None)) from error
    except EngineDeadError as error:
        raise EngineDead() from error
    except EngineGenerateError as error:
        raise _cause(error) from error
    except ValueError as error:
        raise ModelError(str(error)) from error


def _cause(error: EngineGenerateError) -> OmniJobsError:
    """Return our error for the cause of vLLM's."""
    cause = error.__cause__
    if isinstance(cause, MemoryError):
        return OutOfMemory()
    if isinstance(cause, OmniJobsError):
        return cause
    return ModelError(f"the engine could not take this input: {cause}")
