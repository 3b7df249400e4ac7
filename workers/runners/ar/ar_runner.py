"""``ARRunner``: runs an autoregressive stage on vLLM's AsyncLLM.

    run: reserve (bytes for hidden states) → inform (send additional information to the engine)
         → generate → take (fetch hidden states from the engine) → output

When a request fails or is cancelled, the runner makes the engine forget all data of that request.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError, EngineDead, OmniJobsError
from workers.runners.ar.adapter_rank import check_adapter_rank
from workers.runners.ar.asked_text import schema_of, text_parameters
from workers.runners.ar.capture_budget import (
    ENLARGE_SPOOL,
    RAISE_LIMIT,
    CaptureBudget,
    CaptureShare,
    default_capture_bytes,
)
from workers.runners.ar.captures import CAPTURE, CAPTURE_ROWS, inputs_file
from workers.runners.ar.coalesced_calls import CoalescedCalls
from workers.runners.ar.component import ArComponent
from workers.runners.ar.draft_model import check_draft
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.grammar_check import GrammarCheck, no_grammar
from workers.runners.ar.kept_prefixes import Reading
from workers.runners.ar.model_interface import INFORMATION, check_model_class
from workers.runners.ar.prefix_reader import PrefixReader, RowsMissing
from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt
from workers.runners.ar.row_layout import HIDDEN_STATES, INPUT_EMBEDS
from workers.runners.ar.sampling import check_end, sampling_params
from workers.runners.ar.tool_use import MOST_CALLS, ToolUse, tool_call
from workers.runners.cancellation import settled
from workers.runners.declared_component import component_of
from workers.runners.growing_text import GrowingText, Onward
from workers.runners.lora_modules import check_lora_modules
from workers.runners.on_vllm.vllm_runner import VllmRunner, given_arguments
from workers.runners.runner import ProgressSink
from workers.runners.spool import Spool
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.tensors import is_tensor_tree
from workers.stages.types import WAITING, OmniModelRunnerOutput, Progress
from workers.vllm_hooks.hidden_layers import layers_argument

if TYPE_CHECKING:
    from workers.vllm_hooks.token_logprobs import TokenLogprobs
    from workers.vllm_hooks.tool_parsers import ToolTextParser

WORKER = "workers.runners.ar.gpu_ar_worker.GPUARWorker"

GRAMMARS = "xgrammar"
"""The library that holds texts to a form; the check of grammars asks the same."""

_Prompt = OmniTextPrompt | OmniTokensPrompt

logger = logging.getLogger(__name__)


class ARRunner(VllmRunner[_Prompt, ArEngine]):
    """Runs any component that an ``ArComponent`` describes: a thinker, a talker. Implements ``TellingRunner``."""

    # From ``start`` on; the spool and the budget outlive ``close``.
    _spool: Spool
    _budget: CaptureBudget
    _row_bytes: int
    _prefixes: PrefixReader
    _stop_ids: list[int]

    def __init__(self, args: OmniEngineArgs) -> None:
        """Look up the component and load nothing yet. Raises ConfigError when no AR stage can run that component."""
        model, self._component = component_of(args, "ar", ArComponent)
        super().__init__(args, {**engine_args(args, model, self._component), "worker_cls": WORKER})
        self._forgetting: set[asyncio.Task[None]] = set()
        self._load = CoalescedCalls(lambda calls: self._running().call("omni_load", calls))
        self._take_rows = CoalescedCalls(lambda calls: self._running().call("omni_take", calls))
        self._held = ExitStack()
        self._grammars: GrammarCheck | None = None

    async def start(self) -> None:
        """Start vLLM's processes and load the model there.

        Raises ConfigError as ``Engine.start`` does, for a spool that cannot be used and for too small a bound on the
        bytes of hidden states. Raises EngineDead when a process ends.
        """
        self._spool = self._held.enter_context(closing(Spool(self.args.spool_dir, self.args.min_free_bytes)))
        try:
            adapters = self.engine.lora_modules
            most = self._engine_args.get("max_lora_rank")
            check_lora_modules(adapters, lambda each: check_adapter_rank(each, most), self.args.stage)
            check_draft(self._engine_args.get("speculative_config") or {}, self.args.stage)
            await asyncio.to_thread(self._check_tool_parser)
            await super().start()
            engine = self._running()
            await engine.load_adapters(adapters)
            ranks = await engine.call(
                "omni_start", str(self._spool.directory), self._spool.min_free_bytes, self._component.adds_embeddings
            )
            self._check_pipeline(ranks)
            self._set_budget(*(sum(rank[each] for rank in ranks) for each in ("row_bytes", "buffer_bytes")))
        except BaseException:
            await self.close()
            raise
        self._stop_ids = self._component.stop_ids(self.model.hf_config)

    def _class_check(self) -> Callable[[type[Any]], None] | None:
        layers, guesses = bool(self.engine.hidden_layers), bool(self.engine.speculative_config)
        is_pipelined = (self.engine.pipeline_parallel_size or 1) > 1
        if not (layers or guesses or is_pipelined):
            return None
        return partial(check_model_class, layers=layers, is_pipelined=is_pipelined, guesses=guesses)

    @property
    def _joins_rows(self) -> bool:
        """Whether one rank of the engine captures the embeddings, and another the hidden states that they belong to."""
        return self._component.adds_embeddings and (self.engine.pipeline_parallel_size or 1) > 1

    def _check_pipeline(self, ranks: Sequence[Mapping[str, int]]) -> None:
        """Raise ConfigError for a model whose own outputs are made of rows that no rank has whole."""
        if self._joins_rows and any(rank["names_outputs"] for rank in ranks):
            raise ConfigError(
                "the model makes outputs of whole rows, and in a pipeline of ranks none has both parts of them",
                field="engine.pipeline_parallel_size",
                stage=self.args.stage,
            )

    def _check_tool_parser(self) -> None:
        """Raise ConfigError for a parser of tools that vLLM lacks, or of a stage that makes no text."""
        if (name := self.engine.tool_parser) is None:
            return
        if not self._component.text:
            raise ConfigError("this component makes no text", field="engine.tool_parser", stage=self.args.stage)
        from workers.vllm_hooks.tool_parsers import check_tool_parser

        check_tool_parser(name)

    def _set_budget(self, row_bytes: int, buffer_bytes: int) -> None:
        """Limit the bytes of hidden states. Raises ConfigError when one step's copy needs more than the limit."""
        limit = self.args.capture_bytes
        remedy = RAISE_LIMIT
        if limit is None:
            capacity = self._spool.capacity
            limit = default_capture_bytes(capacity)
            remedy = ENLARGE_SPOOL if limit == capacity else RAISE_LIMIT
        if limit < buffer_bytes:
            raise ConfigError(
                f"{limit:,} bytes for hidden states, and the buffers of one step's copy alone take {buffer_bytes:,}: "
                f"{remedy}, or take a smaller engine.max_num_batched_tokens",
                field="capture_bytes",
                stage=self.args.stage,
            )
        self._row_bytes = row_bytes
        self._budget = CaptureBudget(limit - buffer_bytes, remedy)
        self._prefixes = PrefixReader.of_engine(self._running().prefix_blocks, row_bytes, limit)

    async def produce(self, prompt: _Prompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Run one prompt; errors as ``Runner.run``. A captured prompt's output takes budget until its ``free``."""
        onward = Onward(progress)
        try:
            return await self._produce(prompt, onward, reads=True)
        except RowsMissing:
            # Nothing that is known leads here: it is better to compute the prompt twice than to fail the job.
            logger.warning("the engine reused a prefix whose rows are not kept: computing it anew")
            self._prefixes.start_anew()
            return await self._produce(prompt, onward, reads=False)

    async def _produce(self, prompt: _Prompt, progress: ProgressSink, *, reads: bool) -> OmniModelRunnerOutput:
        engine = self._running()
        key = uuid.uuid4().hex
        share: CaptureShare | None = None
        reading: Reading | None = None
        token_ids: list[int] = []
        options: dict[str, Any] = {}
        vllm_prompt: Mapping[str, Any] = prompt.for_vllm(self.model.embeds_size)
        try:
            await self._check_grammar(prompt)
            if prompt.capture:
                if isinstance(prompt, OmniTextPrompt):
                    vllm_prompt = await engine.render(vllm_prompt)
                tokens = len(vllm_prompt["prompt_token_ids"]) if isinstance(prompt, OmniTextPrompt) else prompt.length
                # One row for each token of the prompt and each generated one.
                rows = min(tokens + prompt.parameters.max_tokens, self.model.max_model_len)
                share = await self._reserve(rows, prompt.parameters.max_tokens, progress)
                options = {CAPTURE: key, CAPTURE_ROWS: rows}
            options |= await self._inform(prompt, key)
            if reads and share is not None and INFORMATION not in options:
                reading = self._prefixes.begin(vllm_prompt, prompt.parameters.lora)
            output = await self._generate(prompt, vllm_prompt, key, options, progress, token_ids, reading)
            if share is not None:
                taken, reading = reading, None
                output = await self._take(output, key, share, taken)
            return self._component.finish(prompt, output)
        except BaseException:
            self._prefixes.fail(reading, token_ids)
            await self._clean_up(key, share)
            raise
        finally:
            self._forget_files(key)

    def _forget_files(self, key: str) -> None:
        self._spool.remove(key)
        self._spool.remove(inputs_file(key))

    async def _check_grammar(self, prompt: _Prompt) -> None:
        """Return if the engine can hold the text to the form asked for. Raises InvalidRequest naming the field."""
        asked = schema_of(prompt)
        if asked is not None:
            from workers.vllm_hooks.grammars import unsupported

            schema, field = asked
            if (problem := unsupported(schema)) is not None:
                raise no_grammar(problem, field)
            vocabulary = await self._running().vocabulary()
            if self._grammars is None:
                self._grammars = GrammarCheck(vocabulary.serialized())
            await self._grammars.check(schema, field)

    async def _reserve(self, rows: int, max_tokens: int, progress: ProgressSink) -> CaptureShare:
        """Wait for the bytes of that many rows, in the engine and in the spool. Raises PayloadTooLarge."""
        nbytes = 2 * rows * self._row_bytes
        if nbytes > self._budget.limit or self._budget.has_room(nbytes):
            return await self._budget.reserve(nbytes)
        progress(Progress(0, None, WAITING))
        share = await self._budget.reserve(nbytes)
        progress(Progress(0, max_tokens, "tokens"))
        return share

    async def close(self) -> None:
        """End the engine; runs in progress raise EngineDead. Safe to call twice."""
        for task in self._forgetting:
            task.cancel()
        self._load.close()
        self._take_rows.close()
        if self._grammars is not None:
            await self._grammars.close()
        await super().close()
        self._held.close()

    async def stats(self) -> dict[str, int]:
        """Return counts of the rank that captures hidden states (``GPUARWorker.omni_stats``). Raises EngineDead.

        For tests and benchmarks.
        """
        ranks: list[dict[str, int]] = await self._running().call("omni_stats")
        return ranks[-(self.engine.tensor_parallel_size or 1)]

    async def _clean_up(self, key: str, share: CaptureShare | None) -> None:
        """Return once the engine has forgotten a request that failed or was cancelled."""
        # A task of its own, because the caller may be cancelled again while it runs.
        task = asyncio.create_task(self._forget(key, share))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)
        await settled(task)

    async def _forget(self, key: str, share: CaptureShare | None) -> None:
        engine = self._engine
        try:
            if engine is None or not engine.healthy:
                return  # what it held went with it
            await engine.abort(key)
            await engine.call("omni_drop", key)
            self._forget_files(key)  # a take that was under way has written them meanwhile
        except EngineDead:
            return
        finally:
            if share is not None:
                share.free()

    async def _inform(self, prompt: _Prompt, key: str) -> dict[str, Any]:
        """Send the additional information to the engine; return the sampling option that names it, if there is any.

        Raises ModelError naming the field that does not fit, and StorageFull.
        """
        if isinstance(prompt, OmniTextPrompt) or not prompt.additional_information:
            return {}
        information = prompt.additional_information
        tensors = {name: value for name, value in information.items() if is_tensor_tree(value)}
        values = {name: value for name, value in information.items() if name not in tensors}
        await asyncio.to_thread(self._spool.write, key, tensors, values)
        errors = await self._load(key, prompt.length)
        self._spool.remove(key)
        _raise_first(errors)
        return {INFORMATION: key}

    async def _generate(
        self,
        prompt: _Prompt,
        vllm_prompt: Mapping[str, Any],
        key: str,
        options: Mapping[str, Any],
        progress: ProgressSink,
        token_ids: list[int],
        reading: Reading | None,
    ) -> OmniModelRunnerOutput:
        """Run one request; ``token_ids`` gets those of its answer as they come."""
        parser = await self._tool_parser_of(prompt)
        salt = None if reading is None else reading.salt
        sampling = sampling_params(
            prompt,
            options,
            stop_ids=self._stop_ids,
            text=self._component.text,
            skips_special_tokens=parser is None or parser.skips_special_tokens,
            reads_cache=not options or salt is not None,
        )
        if INFORMATION in options or reading is not None:
            # A request with the same token ids must not read the KV cache of this one: the inputs of a request with
            # information are others, and the rows of one that is captured may not be kept.
            vllm_prompt = {**vllm_prompt, "cache_salt": salt or key}
        total = prompt.parameters.max_tokens
        text = GrowingText(progress, total, is_shown=prompt.tools is None) if self._component.text else None
        logprobs = await self._logprobs_of(prompt)
        prompt_token_ids: Sequence[int] = ()
        finish_reason: str | None = None
        async with aclosing(self._running().generate(vllm_prompt, sampling, key, prompt.parameters.lora)) as outputs:
            async for grown in outputs:
                part = grown.outputs[0]
                token_ids.extend(part.token_ids)
                finish_reason = part.finish_reason
                prompt_token_ids = grown.prompt_token_ids or prompt_token_ids
                if logprobs is not None:
                    logprobs.add(part)
                if text is None:
                    progress(Progress(len(token_ids), total, "tokens"))
                else:
                    text.add(part.text, len(token_ids))
        if text is not None:
            text.end()
        check_end(finish_reason, sampling)
        stopped = finish_reason == "stop"
        output = OmniModelRunnerOutput(
            token_ids=token_ids,
            text=None if text is None else str(text),
            finish_reason=finish_reason,
            prompt_token_ids=prompt_token_ids,
            result={} if logprobs is None else {"logprobs": logprobs.of_text(str(text), stopped=stopped)},
        )
        return await asyncio.to_thread(_with_calls, output, prompt.tools, parser) if prompt.tools else output

    async def _tool_parser_of(self, prompt: _Prompt) -> ToolTextParser | None:
        """Return what reads the calls of tools that a model makes in its own words; None where it makes none."""
        name = self.engine.tool_parser
        if prompt.tools is None or prompt.tools.forced or name is None:
            return None
        from workers.vllm_hooks.tool_parsers import ToolTextParser

        return await asyncio.to_thread(ToolTextParser, name, self._running().tokenizer, prompt.tools.tools)

    async def _logprobs_of(self, prompt: _Prompt) -> TokenLogprobs | None:
        """Return what collects the logprobs of a prompt's text; None if they are not asked for."""
        from workers.vllm_hooks.token_logprobs import TokenLogprobs

        parameters = text_parameters(prompt)
        if not parameters.logprobs or not self._component.text:
            return None
        return TokenLogprobs(await self._running().vocabulary(), parameters.top_logprobs)

    async def _take(
        self, output: OmniModelRunnerOutput, key: str, share: CaptureShare, reading: Reading | None
    ) -> OmniModelRunnerOutput:
        """Add the captured rows, [P + N - 1, H], and the model's named outputs, mapped from the spool, to ``output``.

        They keep ``share`` until the output is freed. Raises ModelError when a row is missing, and StorageFull.
        """
        rows = len(output.prompt_token_ids) + len(output.token_ids) - 1
        with self._prefixes.taking(reading, output.token_ids) as change:
            _raise_first(await self._take_rows(key, rows, change))
        outputs, values = self._spool.read(key)
        hidden_states = outputs.pop(HIDDEN_STATES)
        if self._joins_rows:
            inputs, _ = self._spool.take(inputs_file(key))
            hidden_states = await asyncio.to_thread(hidden_states.add, inputs[INPUT_EMBEDS])
        return output._replace(hidden_states=hidden_states, multimodal_outputs=outputs, values=values, room=share)


def _with_calls(output: OmniModelRunnerOutput, tools: ToolUse, parser: ToolTextParser | None) -> OmniModelRunnerOutput:
    """Return the output with the calls of tools that its text holds, and the rest of the text. Raises ModelError."""
    written = output.text or ""
    if tools.forced:
        calls = tools.calls_of(written)
        text = "" if calls else written
    elif parser is not None:
        text, found = parser.calls_in(written)
        calls = [tool_call(name, arguments) for name, arguments in found[: MOST_CALLS if tools.parallel else 1]]
    else:
        return output
    return output._replace(text=text, tool_calls=calls)


def engine_args(args: OmniEngineArgs, model: OmniModelConfig, component: ArComponent) -> dict[str, Any]:
    """Return vLLM's AsyncEngineArgs of a stage. Raises ConfigError as ``given_arguments`` does."""
    given = given_arguments(args, ArEngine, component.engine_args)
    embeds = {"enable_prompt_embeds": True} if model.prompt_embeds else {}
    own = {"model": str(model.path / component.model), "disable_log_stats": True}
    structured = {"structured_outputs_config": {"backend": GRAMMARS, **given.get("structured_outputs_config", {})}}
    asked = args.engine.hidden_layers if isinstance(args.engine, ArEngine) else {}
    needed = component.hidden_layers
    layers = layers_argument({**(needed(model.path) if callable(needed) else needed), **asked})
    return {**own, **given, **(structured if component.text else {}), **embeds, **component.engine_args, **layers}


def _raise_first(errors: Sequence[Mapping[str, Any] | None]) -> None:
    """Raise the first error among those that the ranks returned."""
    for error in errors:
        if error is not None:
            raise OmniJobsError.from_dict(error)
