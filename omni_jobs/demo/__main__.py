"""The demo: run one job through a whole pipeline on this machine.

    scripts/demo                     text, sound and picture to text and speech in three stages, with a tiny
                                     checkpoint of random weights: its output is noise, but every part is real
    scripts/demo --text              a question, answered in English by SmolLM2-135M-Instruct, whose weights
                                     are downloaded once (93 MB); the answer is shown while it grows
    scripts/demo --model PATH        use this Qwen2.5-Omni checkpoint; with --text that of any causal LM
    scripts/demo --prompt TEXT       ask this
    scripts/demo --out DIR           write result.json, text.txt and audio.wav to this directory

It starts the embedded stack in a temporary directory, submits over HTTP, shows the job's progress, checks the result
and stops everything. The exit status is 0 only if all of this succeeded.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from omni_jobs.cli.interrupts import raised_signals
from omni_jobs.demo.omni import OmniDemo
from omni_jobs.demo.text import TextDemo
from omni_jobs.demo.walk import Demo, walk
from omni_jobs.errors import OmniJobsError


def main() -> int:
    """Run the demo that the command line chooses, and return the exit status: 0, 1 for a failure, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description=(__doc__ or "").split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--text", action="store_true", help="run the text pipeline, with real weights")
    parser.add_argument("--prompt", metavar="TEXT", help="the question")
    parser.add_argument("--model", type=Path, metavar="PATH", help="a checkpoint directory")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory for the results")
    options = parser.parse_args()
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


sys.exit(main())
