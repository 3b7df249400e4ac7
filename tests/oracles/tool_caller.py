"""A tiny language model that always says the same, two calls of tools among it; its chat template knows tools."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.oracles.causal_lm import build_causal_lm

SAID = "Let me see. "
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
)
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|im_end|>\n"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls %}\n<tool_call>\n{{ {'name': call.function.name, 'arguments': "
    "call.function.arguments} | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says how the weather is",
            "parameters": {
                "type": "object",
                "properties": {"city": {"$ref": "#/$defs/city"}},
                "required": ["city"],
                "additionalProperties": False,
                "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
            },
        },
    },
    {"type": "function", "function": {"name": "clock"}},
]


def build_tool_caller(directory: Path) -> Path:
    """A checkpoint directory: a Llama in which each token decides the next, so that it says SAID and CALLS."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    build_causal_lm(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    newline = tokenizer.convert_tokens_to_ids("Ċ")  # the prompt's last token
    tokenizer.add_tokens([SAID, *CALLS])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    chain = [newline, *tokenizer.convert_tokens_to_ids([SAID, *CALLS]), tokenizer.eos_token_id]
    file = directory / "model.safetensors"
    weights = load_file(file)
    embeddings = weights["model.embed_tokens.weight"]
    assert max(chain) < len(embeddings)
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    head = weights["lm_head.weight"]
    head.zero_()
    for token, follower in pairwise(chain):
        head[follower] = embeddings[token] / embeddings[token].norm()
    save_file(weights, file, metadata={"format": "pt"})
    return directory


def transformers_prompt(directory: Path, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    """The prompt as Transformers writes it, of messages whose calls have their arguments as text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompt: str = tokenizer.apply_chat_template(
        [_with_read_arguments(message) for message in messages],
        tools=tools,
        add_generation_prompt=True,
        tokenize=False,
    )
    return prompt


def _with_read_arguments(message: dict[str, Any]) -> dict[str, Any]:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    read = [{"function": {**each, "arguments": json.loads(each["arguments"])}} for each in functions]
    return {**message, **({"tool_calls": read} if read else {})}
