"""Record the installed vLLM's engine arguments: ``python -m workers.runners.on_vllm.record_arguments``."""

import json
from typing import Any

from workers.runners.on_vllm.recorded_arguments import RECORDED_ARGUMENTS
from workers.vllm_hooks.engine_arguments import describe_engine_arguments


def as_text(described: dict[str, Any]) -> str:
    """Return the list as JSON with one argument a line, so that a difference between two versions can be read."""
    lines = [f"    {json.dumps(name)}: {json.dumps(each)}" for name, each in described["arguments"].items()]
    head = f'  "vllm": {json.dumps(described["vllm"])},\n  "arguments": {{\n'
    return "{\n" + head + ",\n".join(lines) + "\n  }\n}\n"


if __name__ == "__main__":
    RECORDED_ARGUMENTS.write_text(as_text(describe_engine_arguments()), encoding="utf-8")
