"""Check engine settings of stages by vLLM's own types: ``python -m workers.runners.on_vllm.check_arguments``.

Reads a JSON list of ``engine`` mappings from standard input. Writes a JSON list to standard output: for each mapping, a
list of [field path, message].
"""

import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from omni_jobs.errors import ConfigError


def main() -> None:
    """Check what stands on standard input. vLLM's import takes seconds, and what it prints goes to standard error."""
    engines = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        gc.disable()  # a fifth of the import's time, and this process ends soon
        from workers.runners.on_vllm.engine_settings import RUNNERS_OWN
        from workers.vllm_hooks.engine_arguments import wrong_arguments

        json.dump([[*wrong_arguments(each, own=RUNNERS_OWN), *_wrong_parser(each)] for each in engines], answer)


def _wrong_parser(engine: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (where, why) for a parser of tools that vLLM lacks."""
    if isinstance(name := engine.get("tool_parser"), str):
        from workers.vllm_hooks.tool_parsers import check_tool_parser

        try:
            check_tool_parser(name)
        except ConfigError as error:
            yield ("tool_parser",), error.message


if __name__ == "__main__":
    main()
