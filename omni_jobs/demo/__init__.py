"""The demo: one job through a whole pipeline on this machine, from nothing to a result.

    scripts/demo                     text, sound and picture to text and speech, three stages; a tiny
                                     checkpoint with random weights: noise, but every part real
    scripts/demo --text              a question answered in English by real weights, SmolLM2-135M-Instruct,
                                     fetched once (93 MB); the answer is shown as it grows
    scripts/demo --model PATH        a Qwen2.5-Omni checkpoint directory; with --text any causal LM's
    scripts/demo --prompt TEXT       what to ask
    scripts/demo --out DIR           where to keep result.json, text.txt and audio.wav

Starts the embedded stack in a directory of its own, submits over HTTP, shows the job's
progress, checks what came back, stops everything. Exit 0 only if all of it happened.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from omni_jobs.cli.interrupts import raised_signals
from omni_jobs.demo.omni import OmniDemo
from omni_jobs.demo.text import TextDemo
from omni_jobs.demo.walk import Demo, walk
from omni_jobs.errors import OmniJobsError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    demo: Demo = (TextDemo if options.text else OmniDemo)(options.model, options.prompt)
    console = Console()
    with raised_signals():
        try:
            walk(demo, options.out, console)
        except (OmniJobsError, TimeoutError) as error:
            console.print(Text(f"The demo failed: {error}", style="red"))
            return 1
        except KeyboardInterrupt:
            console.print("Interrupted; everything is stopped.")
            return 130
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description=(__doc__ or "").split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--text", action="store_true", help="the text pipeline, with real weights")
    parser.add_argument("--prompt", metavar="TEXT", help="what to ask")
    parser.add_argument("--model", type=Path, metavar="PATH", help="a checkpoint directory")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write what came back")
    return parser.parse_args(arguments)
