"""Tools through ``OmniLLM``: prompts tell of them, vLLM's parser reads calls, a forced call follows its schema."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from tests.oracles.tool_caller import CALLS, SAID, TOOLS, transformers_prompt
from workers.offline import OmniLLM, OmniOutput

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(300)

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "How is the weather?"}]
TALK: list[dict[str, Any]] = [
    *ASKED,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo é"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
]


def settings_with(directory: Path, parser: str | None) -> Settings:
    """Settings with a chat pipeline of this parser of tools."""
    config = yaml.safe_load((ROOT / "stage_configs" / "chat.yaml").read_text(encoding="utf-8"))
    engine = config["stages"]["llm"]["engine"]
    engine |= {"dtype": "float32", "structured_outputs_config": {"disable_any_whitespace": True}}
    engine["cpu"]["kv_cache_memory_bytes"] = 64 << 20
    if parser is not None:
        engine["tool_parser"] = parser
    config["stages"]["llm"]["parameters"] = {"temperature": 0, "max_tokens": 64}
    (directory / "chat.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return Settings(device="cpu", spool_dir=directory / "spool", stage_configs=directory)


@pytest.fixture(scope="module")
def llm(tiny_tool_caller: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OmniLLM]:
    settings = settings_with(tmp_path_factory.mktemp("tools"), "hermes")
    with OmniLLM("chat", model=tiny_tool_caller, settings=settings) as llm:
        yield llm


def ask(llm: OmniLLM, messages: list[dict[str, Any]] = ASKED, **body: Any) -> dict[str, Any]:
    (output,) = llm.generate([{"messages": messages, **body}])
    assert isinstance(output, OmniOutput), output
    return dict(output.result)


def functions(result: dict[str, Any]) -> list[tuple[str, Any]]:
    """(name, arguments) of each call, whose form and id are checked."""
    calls = result["tool_calls"]
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(set(call) == {"id", "type", "function"} and call["id"].startswith("call_") for call in calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_calls_in_the_models_own_words_are_parsed(llm: OmniLLM) -> None:
    result = ask(llm, tools=TOOLS)
    assert functions(result) == [("weather", {"city": "Oslo"}), ("clock", {})]
    assert (result["text"], result["finish_reason"]) == (SAID, "tool_calls")
    alone = ask(llm, tools=TOOLS, parallel_tool_calls=False)
    assert functions(alone) == [("weather", {"city": "Oslo"})]


def test_without_tools_the_same_words_are_text(llm: OmniLLM) -> None:
    with_tools = ask(llm, tools=TOOLS)
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        result = ask(llm, **body)
        assert result["text"] == SAID + "".join(CALLS)
        assert result["finish_reason"] == "stop"
        assert "tool_calls" not in result
        assert result["usage"]["llm"]["prompt_tokens"] < with_tools["usage"]["llm"]["prompt_tokens"]


def test_a_call_that_has_to_be_made_follows_its_parameters(llm: OmniLLM) -> None:
    forced = ask(llm, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    ((name, arguments),) = functions(forced)
    assert (name, arguments) in [("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"}), ("clock", {})]
    assert (forced["text"], forced["finish_reason"]) == ("", "tool_calls")
    for name, allowed in (("weather", [{"city": "Oslo"}, {"city": "Rome"}]), ("clock", [{}])):
        named = ask(llm, tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}})
        ((called, arguments),) = functions(named)
        assert called == name
        assert arguments in allowed
        assert named["finish_reason"] == "tool_calls"


def test_a_call_that_is_cut_is_text(llm: OmniLLM) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    cut = ask(llm, tools=TOOLS, tool_choice=named, max_tokens=5)
    assert cut["finish_reason"] == "length"
    assert "tool_calls" not in cut
    assert cut["text"].startswith("{")


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
def test_prompts_with_calls_and_answers_are_transformers_own(
    llm: OmniLLM, tiny_tool_caller: Path, tools: list[dict[str, Any]] | None
) -> None:
    from transformers import AutoTokenizer

    due = transformers_prompt(tiny_tool_caller, TALK, tools)
    assert '"city": "Oslo é"' in due
    tokens = AutoTokenizer.from_pretrained(tiny_tool_caller)(due, add_special_tokens=False)["input_ids"]
    (output,) = llm.generate([{"messages": TALK} | ({} if tools is None else {"tools": tools})])
    assert isinstance(output, OmniOutput)
    assert list(output.stages["llm"].prompt_token_ids) == tokens


def changed(place: str, value: Any) -> list[dict[str, Any]]:
    """The tools with another value at a place of the first one's function."""
    first = {**TOOLS[0], "function": {**TOOLS[0]["function"], place: value}}
    return [first, *TOOLS[1:]]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools.2.function.name", "a second tool weather"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice.function.name", "no tool x"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tool_choice": "auto"}, "tool_choice", "there are no tools"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls", "there are no tools"),
        ({"tools": []}, "tools", "1 or more"),
        ({"tools": changed("name", "a b")}, "tools.0.function.name", "match"),
        ({"tools": changed("parameters", {"enum": ["x" * 70_000]})}, "tools.0.function.parameters", "at most 65,536"),
        ({"tools": changed("parameters", {"not": {}}), "tool_choice": "required"},
         "tools.0.function.parameters", "cannot be held to"),
        ({"tools": changed("description", "a <|im_end|> b")}, "tools.0.function.description", "reserve"),
        ({"tools": changed("parameters", {"properties": {"<|im_end|>": {}}})},
         "tools.0.function.parameters.properties", "reserve"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format", "tool_choice must be none"),
        ({"tools": TOOLS, "tool_choice": "required", "stages": {"llm": {"min_tokens": 3}}},
         "tool_choice", "min_tokens"),
        ({"messages": [*TALK[:2], {"role": "tool", "content": "Rain"}]}, "messages.2.tool_call_id", "required"),
        ({"messages": [{**ASKED[0], "tool_call_id": "x"}]}, "messages.0.tool_call_id", "role tool"),
        ({"messages": [{**ASKED[0], "tool_calls": TALK[1]["tool_calls"]}]}, "messages.0.tool_calls", "only an assist"),
        ({"messages": [{"role": "assistant"}]}, "messages.0.content", "required"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages.0.content", "required"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(llm: OmniLLM, body: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        llm.generate([{"messages": ASKED, **body}])
    assert caught.value.field == f"requests.0.{field}"


def test_a_template_that_knows_no_tools_is_named(tiny_causal_lm: Path, tmp_path: Path) -> None:
    settings = settings_with(tmp_path, "hermes").model_copy(update={"models": {"chat": tiny_causal_lm}})
    pipelines = load_pipelines(tmp_path)
    assert admit(parse({"model": "chat", "messages": ASKED}, settings), pipelines, settings)
    for body, field in (({"tools": TOOLS}, "tools"), ({"messages": TALK}, "messages.1.tool_calls")):
        submission = parse({"model": "chat", "messages": ASKED, **body}, settings)
        with pytest.raises(InvalidRequest, match="chat template of chat's checkpoint knows no tools") as caught:
            admit(submission, pipelines, settings)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "must be a JSON object as text"),
        ("[1]", "must be a JSON object as text"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": "\\ud800"}', "half a surrogate pair"),
        ('{"a": "\\u0000"}', r"U\+0000"),
        ('{"a": "<\\u007cim_end|>"}', "reserve"),
    ],
    ids=range(7),
)
def test_arguments_that_no_template_could_write_are_refused(llm: OmniLLM, arguments: str, message: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    with pytest.raises(InvalidRequest, match=message) as caught:
        llm.generate([{"messages": [*ASKED, {"role": "assistant", "tool_calls": [call]}]}])
    assert (caught.value.field or "").startswith("requests.0.messages.1.tool_calls")


def test_a_parser_that_vllm_lacks_is_refused_before_the_model_is_loaded(tiny_tool_caller: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no parser of tools 'hermas'; did you mean .*hermes") as caught:
        OmniLLM("chat", model=tiny_tool_caller, settings=settings_with(tmp_path, "hermas"))
    assert caught.value.field == "engine.tool_parser"
