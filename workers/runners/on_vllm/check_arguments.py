"""Check engine settings of stages by vLLM's own types: ``python -m workers.runners.on_vllm.check_arguments``.

Reads a JSON list of ``engine`` mappings from standard input. Writes a JSON list to standard output: for each mapping, a
list of [field path, message].
"""

import gc
import json
import os
import sys


def main() -> None:
    """Check what stands on standard input. vLLM's import takes seconds, and what it prints goes to standard error."""
    engines = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        gc.disable()  # a fifth of the import's time, and this process ends soon
        from workers.vllm_hooks.engine_arguments import wrong_arguments

        own = frozenset({"lora_modules"})
        json.dump([list(wrong_arguments(each, own=own)) for each in engines], answer)


if __name__ == "__main__":
    main()
