"""What a job may ask of a text, on vLLM: a form by a JSON schema, where it stops, the logprobs of its tokens."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from jsonschema import validate

from omni_jobs.errors import EngineDead, InvalidRequest
from omni_jobs.metrics.worker_metrics import WorkerMetrics
from tests.oracles.ar import quiet
from tests.processes import one_process_an_engine
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.asked_text import SCHEMA as FIELD
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.grammar_check import GrammarCheck
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTextPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput, Progress

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "block_size": 32,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 256,
    "structured_outputs_config": {"disable_any_whitespace": True},  # a random model would go on with spaces
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "é"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}
HANGS = {"type": "object", "minProperties": 500, "properties": {f"p{n}": {"type": "string"} for n in range(900)}}


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def prompt(words: str, **parameters: Any) -> OmniTextPrompt:
    parameters = {"temperature": 0, "max_tokens": 96, **parameters}
    return OmniTextPrompt(words, {}, ArParameters.model_validate(parameters), seed=1, capture=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(tiny_causal_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ARRunner]:
    settings: Any = ArEngine.model_validate(ENGINE)
    model = OmniModelConfig(tiny_causal_lm, "causal_lm", None)
    spool = tmp_path_factory.mktemp("spool")
    found = ARRunner(OmniEngineArgs("llm", model, "cpu", None, 16, settings, spool_dir=spool, measures=True))
    with one_process_an_engine():
        await found.start()
    yield found
    await found.close()


async def run(llm: ARRunner, asked: OmniTextPrompt) -> OmniModelRunnerOutput:
    return await llm.run(asked, quiet)


ASKED = [
    prompt("Hi", response_format=form(SCHEMA)),
    prompt("Hi"),
    prompt("Who?", response_format=form(LIST)),
    prompt("Hello there", temperature=0.8, response_format=form(SCHEMA)),
    prompt("Who?", response_format={"type": "text"}),
    prompt("Hi", response_format={"type": "json_object"}, max_tokens=12),
    prompt("And so on", temperature=0.8),
    prompt("Hi", stop=["x"], logprobs=True, top_logprobs=3),
]


async def test_a_text_follows_its_schema_and_a_batch_changes_nothing(llm: ARRunner) -> None:
    """Prompts with forms and without, greedy and drawn: together as each alone."""
    alone = [await run(llm, asked) for asked in ASKED]
    together = await asyncio.gather(*(run(llm, asked) for asked in ASKED))
    for one, other in zip(alone, together, strict=True):
        assert (one.text, list(one.token_ids), one.finish_reason) == (
            other.text,
            list(other.token_ids),
            other.finish_reason,
        )
    for number, schema in ((0, SCHEMA), (2, LIST), (3, SCHEMA)):
        assert alone[number].finish_reason == "stop"
        validate(json.loads(alone[number].text or ""), schema)
    assert (alone[5].text or "").startswith("{")
    free = await run(llm, prompt("Who?"))
    assert alone[4].text == free.text
    assert alone[7].result["logprobs"] == together[7].result["logprobs"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#/$defs/none"}, r"no grammar can be made of the schema: .*\$defs"),
        ({"type": "array", "items": {}, "uniqueItems": True}, "not supported"),
    ],
)
async def test_a_schema_that_becomes_no_grammar_fails_its_job_alone(llm: ARRunner, schema: Any, message: str) -> None:
    bad, good = prompt("Hi", response_format=form(schema)), ASKED[0]
    failed, passed = await asyncio.gather(run(llm, bad), run(llm, good), return_exceptions=True)
    assert isinstance(failed, InvalidRequest)
    assert failed.field == FIELD
    assert not failed.retryable
    with pytest.raises(InvalidRequest, match=message):
        raise failed
    assert isinstance(passed, OmniModelRunnerOutput)
    validate(json.loads(passed.text or ""), SCHEMA)


async def test_a_grammar_that_takes_for_ever_stops_nothing(llm: ARRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other texts come meanwhile, free ones and later ones with a form; the second such job is refused at once."""
    await run(llm, ASKED[0])
    check = llm._grammars
    assert check is not None
    monkeypatch.setattr(check, "_limit_s", 2.0)
    hanging = asyncio.create_task(run(llm, prompt("Hi", response_format=form(HANGS))))
    free = await run(llm, prompt("Hi"))
    assert not hanging.done()
    assert free.finish_reason
    with pytest.raises(InvalidRequest, match="that takes longer than") as caught:
        await hanging
    assert caught.value.field == FIELD
    with pytest.raises(InvalidRequest, match="that takes longer than"):
        await run(llm, prompt("Ho", response_format=form(HANGS)))
    assert check._process is None, "the answer is known"
    again = prompt("Hi", response_format=form({**LIST, "maxItems": 4}))
    validate(json.loads((await run(llm, again)).text or ""), {**LIST, "maxItems": 4})


async def test_a_compiler_that_was_killed_is_nobodys_fault(llm: ARRunner) -> None:
    vocabulary = (await llm._running().vocabulary()).serialized()
    check = GrammarCheck(vocabulary, limit_s=60)
    await check.check("{}", FIELD)
    hanging = asyncio.create_task(check.check(json.dumps(HANGS), FIELD))
    await asyncio.sleep(0)
    assert check._process is not None
    check._process.kill()
    with pytest.raises(EngineDead, match="was killed"):
        await hanging
    await check.check(json.dumps(SCHEMA), FIELD)
    await check.close()


# Stop strings.


def parts_shown(seen: Sequence[Progress], stop: str) -> list[str]:
    """The texts of progress that end in a beginning of the stop string."""
    texts = [progress.text or "" for progress in seen]
    return [text for text in texts if any(text.endswith(stop[:n]) for n in range(1, len(stop) + 1))]


async def test_a_text_ends_before_a_stop_string_of_which_no_part_is_shown(llm: ARRunner) -> None:
    whole = (await run(llm, prompt("Hello there", ignore_eos=True))).text or ""
    stop = whole[20:24]
    at = whole.index(stop)
    seen: list[Progress] = []
    llm_output = await llm.run(prompt("Hello there", ignore_eos=True, stop=["never", stop]), seen.append)
    assert llm_output.text == whole[:at]
    assert llm_output.finish_reason == "stop"
    assert len(llm_output.token_ids) < 96
    texts = [progress.text or "" for progress in seen]
    for earlier, later in pairwise([*texts, whole[:at]]):
        assert later.startswith(earlier)
    # What was held back is shown when the text ends in another way.
    cut = await run(llm, prompt("Hello there", ignore_eos=True, stop=[whole[90:] + "!"]))
    assert (cut.text, cut.finish_reason) == (whole, "length")


# Logprobs.


async def test_logprobs_are_those_of_the_model(llm: ARRunner, tiny_causal_lm: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_causal_lm).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal_lm)
    output = await run(llm, prompt("Hello there", max_tokens=12, ignore_eos=True, logprobs=True, top_logprobs=4))
    plain = await run(llm, prompt("Hello there", max_tokens=12, ignore_eos=True))
    assert (output.text, list(output.token_ids)) == (plain.text, list(plain.token_ids))
    assert "logprobs" not in plain.result
    with torch.inference_mode():
        ids = [*output.prompt_token_ids, *output.token_ids]
        due = model(torch.tensor([ids])).logits[0].log_softmax(-1)[len(output.prompt_token_ids) - 1 :]
    entries = output.result["logprobs"]
    assert len(entries) == 12
    assert b"".join(bytes(each["bytes"]) for each in entries).decode() == output.text
    for row, token, entry in zip(due, output.token_ids, entries, strict=False):
        assert entry["token"] == tokenizer.decode([token])
        assert entry["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
        best = row.topk(4)
        assert [each["logprob"] for each in entry["top_logprobs"]] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}


def shown_by_engine(text: str) -> dict[str, tuple[dict[str, str], float]]:
    """The labels and the value of vLLM's series in a worker's metrics; of those with one name, the last."""
    series = re.findall(r"^(vllm:\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    return {name: (dict(re.findall(r'(\w+)="(.*?)"', labels)), float(value)) for name, labels, value in series}


async def test_the_engine_s_own_metrics_have_the_stage_s_labels(llm: ARRunner, tiny_causal_lm: Path) -> None:
    metrics = WorkerMetrics("chat", "2", "llm", 16)
    before = shown_by_engine(metrics.text().decode())
    await run(llm, prompt("Hi", max_tokens=12, ignore_eos=True))
    text = metrics.text().decode()
    after = shown_by_engine(text)
    labels = {"engine": "0", "pipeline": "chat", "version": "2", "stage": "llm"}
    made = "vllm:generation_tokens_total"
    assert after[made] == (labels, before[made][1] + 12)
    assert after["vllm:num_requests_running"] == (labels, 0)
    assert after["vllm:time_to_first_token_seconds_count"][1] == before["vllm:time_to_first_token_seconds_count"][1] + 1
    of_stage = {"pipeline": "chat", "version": "2", "stage": "llm"}.items()
    assert {name for name, (each, _) in after.items() if not of_stage <= each.items()} == set()
    assert "model_name" not in text
    assert str(tiny_causal_lm) not in text


async def test_logprobs_are_of_the_text_alone_and_are_json(llm: ARRunner) -> None:
    """Neither the token that ends the text nor those of a stop string; what a grammar forbids has OpenAI's least."""
    output = await run(llm, prompt("Hi", response_format=form(SCHEMA), logprobs=True, top_logprobs=20))
    entries = output.result["logprobs"]
    assert b"".join(bytes(each["bytes"]) for each in entries).decode() == output.text
    assert len(entries) == len(output.token_ids) - 1
    assert min(each["logprob"] for entry in entries for each in entry["top_logprobs"]) == -9999.0
    json.dumps(entries, allow_nan=False)
    whole = (await run(llm, prompt("Hello there", ignore_eos=True))).text or ""
    cut = await run(llm, prompt("Hello there", ignore_eos=True, stop=[whole[20:24]], logprobs=True))
    shown = b"".join(bytes(each["bytes"]) for each in cut.result["logprobs"]).decode()
    assert shown == cut.text
    assert all(each["top_logprobs"] == [] for each in cut.result["logprobs"])
