"""``ARRunner``: an autoregressive stage on vLLM's AsyncLLM.

    run: reserve (room for hidden states) → inform (additional information → engine)
         → generate → take (hidden states ← engine) → output

What a request leaves in the engine is dropped on every way out that is not the good one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError, EngineDead, ModelError, PayloadTooLarge, StorageFull
from omni_jobs.pipelines.parameters import ArParameters
from workers.models.components import component_of
from workers.models.interface import INFORMATION
from workers.runners.ar.capture_budget import (
    ENLARGE_SPOOL,
    RAISE_LIMIT,
    CaptureBudget,
    Reservation,
    default_capture_bytes,
)
from workers.runners.ar.captures import CAPTURE, CAPTURE_ROWS
from workers.runners.ar.coalesced_calls import GroupedCalls
from workers.runners.engine_environment import engine_environment
from workers.runners.runner import ProgressSink
from workers.runners.spool import Spool
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import (
    WAITING,
    EnginePrompt,
    OmniModelRunnerOutput,
    OmniTextPrompt,
    OmniTokensPrompt,
    Progress,
)

if TYPE_CHECKING:
    from vllm import SamplingParams

    from workers.vllm_hooks.engine import Engine

__all__ = ["ARRunner"]

WORKER = "workers.runners.ar.gpu_ar_worker.GPUARWorker"


@dataclass(slots=True)
class _Held:
    """What a request has reserved."""

    room: Reservation | None = None

    def free(self) -> None:
        if self.room is not None:
            self.room.free()


class ARRunner:
    """Thinker, talker, or any AR part of ``workers.models.components``; see ``Runner``."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Raises ConfigError when no AR stage can run this part of the checkpoint."""
        self._args = args
        self._component = component_of(args.model, args.stage)
        self._engine: Engine | None = None
        self._spool: Spool | None = None
        self._budget: CaptureBudget | None = None
        self._row_bytes = 0
        self._stop_ids: list[int] = []
        self._runs: set[asyncio.Task[OmniModelRunnerOutput]] = set()
        self._dropping: set[asyncio.Task[None]] = set()
        self._load = GroupedCalls(lambda calls: self._running().call("omni_load", calls))
        self._take_rows = GroupedCalls(lambda calls: self._running().call("omni_take", calls))
        self._closed = False

    async def start(self) -> None:
        """Load the model in processes of its own. Raises ConfigError or EngineDead."""
        self._spool = Spool(self._args.spool_dir, self._args.min_free_bytes)
        try:
            self._engine = await asyncio.to_thread(self._start_engine)
            told = (str(self._spool.directory), self._spool.min_free_bytes, self._component.adds_embeddings)
            answers = await self._engine.call("omni_start", *told)
            self._set_budget(answers[0]["row_bytes"], answers[0]["buffer_bytes"])
        except BaseException:
            await self.close()
            raise
        self._stop_ids = self._component.stop_ids(self._engine.hf_config)

    def _set_budget(self, row_bytes: int, buffer_bytes: int) -> None:
        """Raises ConfigError when the copies' own buffers leave nothing of it."""
        limit = self._args.capture_bytes
        remedy = RAISE_LIMIT
        if limit is None:
            capacity = self._spooled().capacity
            limit = default_capture_bytes(capacity)
            remedy = ENLARGE_SPOOL if limit == capacity else RAISE_LIMIT
        if limit < buffer_bytes:
            raise ConfigError(
                f"{limit:,} bytes for hidden states, and the buffers of one step's copy alone take {buffer_bytes:,}: "
                f"{remedy}, or take a smaller engine.max_num_batched_tokens",
                field="capture_bytes",
                stage=self._args.stage,
            )
        self._row_bytes = row_bytes
        self._budget = CaptureBudget(limit - buffer_bytes, remedy)

    def _start_engine(self) -> Engine:
        from workers.vllm_hooks.engine import Engine

        os.environ.update(engine_environment(self._args.device))  # vLLM starts its processes with this one's
        device = {} if self._args.device_index is None else {"device_ids": [self._args.device_index]}
        return Engine.start({**self._args.vllm_args(), **self._component.engine_args, **device, "worker_cls": WORKER})

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Run one prompt to its end; see ``Runner.run``."""
        task = asyncio.create_task(self._run(prompt, progress))
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and caller is not None and not caller.cancelling():
                raise EngineDead("the engine was closed", stage=self._args.stage) from None
            raise

    async def _run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        if not isinstance(prompt, OmniTextPrompt | OmniTokensPrompt):
            raise ModelError(f"an AR stage takes no {type(prompt).__name__}", field="kind")
        key = uuid.uuid4().hex
        vllm_prompt: Mapping[str, Any] = _vllm_prompt(prompt)
        async with self._request(key) as held:
            if not prompt.capture:
                options = await self._inform(prompt, key)
                return await self._generate(prompt, vllm_prompt, key, options, progress)
            if isinstance(prompt, OmniTextPrompt):
                vllm_prompt = await self._running().render(vllm_prompt)
            rows = self._most_rows(prompt, vllm_prompt)
            held.room = await self._reserve(rows, prompt.parameters.max_tokens, progress)
            options = await self._inform(prompt, key)
            options |= {CAPTURE: key, CAPTURE_ROWS: rows}
            output = await self._generate(prompt, vllm_prompt, key, options, progress)
            return await self._take(output, key, held.room)

    def _most_rows(self, prompt: OmniTextPrompt | OmniTokensPrompt, vllm_prompt: Mapping[str, Any]) -> int:
        """The rows of the prompt and of all tokens it may get; a step too far is the last one's."""
        embeds = vllm_prompt.get("prompt_embeds")
        tokens = len(vllm_prompt["prompt_token_ids"] if embeds is None else embeds)
        return min(tokens + prompt.parameters.max_tokens, self._running().max_model_len)

    async def _reserve(self, rows: int, max_tokens: int, progress: ProgressSink) -> Reservation:
        """Room for that many rows, in the engine and in the spool. Raises PayloadTooLarge."""
        budget = self._budget
        if budget is None:
            raise EngineDead("the engine is not running", stage=self._args.stage)
        need = 2 * rows * self._row_bytes
        if need > budget.limit or budget.has_room(need):
            return await budget.reserve(need)
        progress(Progress(0, None, WAITING))
        room = await budget.reserve(need)
        progress(Progress(0, max_tokens, "tokens"))
        return room

    async def close(self) -> None:
        """End the engine; what is running fails with EngineDead."""
        self._closed = True
        engine, self._engine = self._engine, None
        for task in (*self._runs, *self._dropping):
            task.cancel()
        self._load.close()
        self._take_rows.close()
        if engine is not None:
            await engine.close()
            gc.collect()  # AsyncLLM lies in reference cycles, and its __del__ fails once the interpreter is ending
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()

    @property
    def healthy(self) -> bool:
        return self._engine is not None and self._engine.healthy

    async def stats(self) -> dict[str, int]:
        """Counts of the first rank's model runner, for tests and metrics."""
        answers = await self._running().call("omni_stats")
        counts: dict[str, int] = answers[0]
        return counts

    @property
    def reserved_capture_bytes(self) -> int:
        """What captures may keep at this moment."""
        return 0 if self._budget is None else self._budget.reserved

    def _running(self) -> Engine:
        if self._engine is None:
            raise EngineDead("the engine is not running", stage=self._args.stage)
        return self._engine

    def _spooled(self) -> Spool:
        if self._spool is None:
            raise EngineDead("the engine is not running", stage=self._args.stage)
        return self._spool

    @asynccontextmanager
    async def _request(self, key: str) -> AsyncIterator[_Held]:
        """On any way out but the good one, the engine forgets the request; errors carry the stage's name."""
        held = _Held()
        try:
            yield held
        except BaseException as error:
            if isinstance(error, ModelError | EngineDead | PayloadTooLarge):
                error.stage = error.stage or self._args.stage
            if self.healthy:
                # A task of its own: the caller may be cancelled again while this runs.
                task = asyncio.create_task(self._forget(key, held))
                self._dropping.add(task)
                task.add_done_callback(self._dropping.discard)
                if isinstance(error, Exception):
                    await asyncio.shield(task)
            else:
                held.free()  # its captures went with the engine
            raise
        finally:
            if self._spool is not None:
                self._spool.remove(key)

    async def _forget(self, key: str, held: _Held) -> None:
        engine = self._engine
        try:
            if engine is None or not engine.healthy:
                return
            await engine.abort(key)
            await engine.call("omni_drop", key)
            if self._spool is not None:
                self._spool.remove(key)  # a take that was under way has written it meanwhile
        except EngineDead:
            return  # its memory went with it
        finally:
            held.free()

    async def _inform(self, prompt: OmniTextPrompt | OmniTokensPrompt, key: str) -> dict[str, Any]:
        """Hand the additional information to the engine. Raises ModelError naming the field."""
        if isinstance(prompt, OmniTextPrompt) or not prompt.additional_information:
            return {}
        spool = self._spooled()
        await asyncio.to_thread(spool.write, key, prompt.additional_information)
        prompt_tokens = len(prompt.prompt_token_ids if prompt.prompt_embeds is None else prompt.prompt_embeds)
        answers = await self._load(key, prompt_tokens)
        spool.remove(key)
        _raise_first(answers)
        return {INFORMATION: key}

    async def _generate(
        self,
        prompt: OmniTextPrompt | OmniTokensPrompt,
        vllm_prompt: Mapping[str, Any],
        key: str,
        options: Mapping[str, Any],
        progress: ProgressSink,
    ) -> OmniModelRunnerOutput:
        sampling = self._sampling(prompt, options)
        if INFORMATION in options:
            # What is computed of these inputs must not be read by a request with the same token ids.
            vllm_prompt = {**vllm_prompt, "cache_salt": key}
        token_ids: list[int] = []
        text: list[str] = []
        prompt_token_ids: Sequence[int] = ()
        finish_reason: str | None = None
        total = prompt.parameters.max_tokens
        async with aclosing(self._running().generate(vllm_prompt, sampling, key)) as outputs:
            async for output in outputs:
                part = output.outputs[0]
                token_ids.extend(part.token_ids)
                text.append(part.text)
                finish_reason = part.finish_reason
                prompt_token_ids = output.prompt_token_ids or prompt_token_ids
                so_far = "".join(text) if self._component.text else None
                progress(Progress(len(token_ids), total, "tokens", so_far))
        if finish_reason not in ("stop", "length"):
            raise EngineDead(f"the engine gave the request up: {finish_reason}")
        return OmniModelRunnerOutput(
            token_ids=token_ids,
            text="".join(text) if self._component.text else None,
            finish_reason=finish_reason,
            prompt_token_ids=prompt_token_ids,
        )

    async def _take(self, output: OmniModelRunnerOutput, key: str, room: Reservation) -> OmniModelRunnerOutput:
        """Fetch the captured rows, [P + N - 1, H], and the model's named outputs, mapped from the spool.

        ``room`` is theirs until the output is freed. Raises ModelError when a row is missing.
        """
        rows = len(output.prompt_token_ids) + len(output.token_ids) - 1
        _raise_first(await self._take_rows(key, rows))
        found = self._spooled().read(key)
        values = {"mrope_delta": found.pop("mrope_delta")} if "mrope_delta" in found else {}
        return OmniModelRunnerOutput(
            token_ids=output.token_ids,
            text=output.text,
            finish_reason=output.finish_reason,
            prompt_token_ids=output.prompt_token_ids,
            hidden_states=found.pop("hidden_states"),
            multimodal_outputs=found,
            values=values,
            room=room,
        )

    def _sampling(self, prompt: OmniTextPrompt | OmniTokensPrompt, options: Mapping[str, Any]) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters: ArParameters = prompt.parameters
        text = self._component.text
        return SamplingParams(
            temperature=parameters.temperature,
            top_p=parameters.top_p,
            top_k=parameters.top_k,
            min_p=parameters.min_p,
            repetition_penalty=parameters.repetition_penalty,
            presence_penalty=parameters.presence_penalty,
            frequency_penalty=parameters.frequency_penalty,
            max_tokens=parameters.max_tokens,  # vLLM ends earlier where the context does
            min_tokens=min(parameters.min_tokens, parameters.max_tokens),
            stop=list(parameters.stop) if text else None,
            stop_token_ids=[] if parameters.ignore_eos else self._stop_ids,
            ignore_eos=parameters.ignore_eos or not text,
            seed=None if parameters.temperature == 0 else prompt.seed,
            detokenize=text,
            output_kind=RequestOutputKind.DELTA,
            # Cached tokens are not computed: they have no hidden states, and a prompt of
            # placeholders says nothing of what its additional information is.
            skip_reading_prefix_cache=bool(options),
            extra_args=dict(options) or None,
        )


def _vllm_prompt(prompt: OmniTextPrompt | OmniTokensPrompt) -> dict[str, Any]:
    if isinstance(prompt, OmniTextPrompt):
        vllm_prompt: dict[str, Any] = {"prompt": prompt.prompt}
        if prompt.multi_modal_data:
            vllm_prompt["multi_modal_data"] = dict(prompt.multi_modal_data)
        if prompt.mm_processor_kwargs:
            vllm_prompt["mm_processor_kwargs"] = dict(prompt.mm_processor_kwargs)
        return vllm_prompt
    if prompt.prompt_embeds is not None:
        return {"prompt_embeds": prompt.prompt_embeds}
    return {"prompt_token_ids": list(prompt.prompt_token_ids)}


def _raise_first(answers: Sequence[dict[str, str] | None]) -> None:
    for answer in answers:
        if answer is not None:
            if answer["retry_class"] == "storage":  # the spool has no room: another attempt may find some
                raise StorageFull(answer["message"])
            raise ModelError(answer["message"], field=answer["field"] or None)
