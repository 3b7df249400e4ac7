"""Compile grammars as vLLM does, in a process that may hang or die: ``python -m workers.vllm_hooks.grammar_compiler``.

Standard input has messages, each after its length in 8 bytes: first a tokenizer's vocabulary as xgrammar writes it,
then JSON schemas. Standard output has for each a line of JSON: what is wrong with it, or null.
"""

import json
import os
import re
import resource
import sys
from pathlib import Path
from typing import BinaryIO

_MOST_BYTES = 4 << 30
"""Bytes that compiling may take beside what is loaded; vLLM's engine would take as many."""
_MOST_THREADS = 8  # vLLM's
_WHERE = re.compile(r"^\[[0-9:]+\] \S+: ")  # the time and the line of its source that xgrammar puts first


def main() -> None:
    """Answer messages until standard input ends."""
    messages, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    import xgrammar

    compiler = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo.deserialize_json(_read(messages).decode()),
        max_threads=_MOST_THREADS,
        cache_enabled=False,
    )
    _bound_memory()
    while schema := _read(messages):
        try:
            compiler.compile_json_schema(schema.decode())
            problem = None
        except MemoryError:
            problem = "it takes too much memory"
        except (RuntimeError, ValueError, TypeError) as error:
            problem = _WHERE.sub("", str(error).strip())[:500]
        answers.write(json.dumps(problem) + "\n")
        answers.flush()


def _read(messages: BinaryIO) -> bytes:
    return messages.read(int.from_bytes(messages.read(8), "big"))


def _bound_memory() -> None:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    loaded = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmData:"))) << 10
    most = loaded + _MOST_BYTES
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


if __name__ == "__main__":
    main()
