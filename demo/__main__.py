"""Run jobs through a whole pipeline on this machine. Without options: a question spoken, an answer spoken, with real
weights. Whisper hears it, SmolLM2-135M-Instruct thinks (93 MB, downloaded once), a voice speaks; then the same again
while a worker is killed.

It starts the embedded stack in a temporary directory, submits over HTTP, shows the jobs' progress, checks the results
and stops everything. The exit status is 0 only if all of this succeeded.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from demo.omni import omni_demo
from demo.picture import LIGHTHOUSE, picture_demo
from demo.text import text_demo
from demo.voice import voice_demo
from omni_jobs.cli.exits import raised_signals
from omni_jobs.errors import OmniJobsError

_TEXT = "one stage: a question in text, answered while you watch"
_OMNI = (
    "text, sound and picture to text and speech in Qwen2.5-Omni's three stages, with a tiny checkpoint of random "
    "weights: noise, but every part is real"
)
_PICTURE = (
    "a drawn scene, or the picture in this file, becomes four times as large with real weights: Real-ESRGAN on ncnn; "
    "one file shows before and after"
)
_MODEL = "use this causal LM's checkpoint; with --omni that of a Qwen2.5-Omni, with --picture a directory of networks"
_OUT = "write result.json, and the text, sound or picture, to this directory"


def main() -> int:
    """Run the demo that the command line chooses, and return the exit status: 0, 1 for a failure, 130 for Ctrl-C."""
    options = _options()
    console = Console()
    with raised_signals():
        try:
            if options.text:
                text_demo(console, options.out, options.model, options.prompt)
            elif options.omni:
                omni_demo(console, options.out, options.model, options.prompt)
            elif options.picture:
                picture_demo(console, options.out, options.model, options.picture)
            else:
                voice_demo(console, options.out, options.model, options.prompt, options.audio)
        except (OmniJobsError, TimeoutError) as error:
            console.print(Text(f"The demo failed: {error}", style="red"))
            return 1
        except KeyboardInterrupt:
            console.print("Interrupted; everything is stopped.")
            return 130
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--text", action="store_true", help=_TEXT)
    kind.add_argument("--omni", action="store_true", help=_OMNI)
    kind.add_argument("--picture", nargs="?", type=Path, const=LIGHTHOUSE, metavar="FILE", help=_PICTURE)
    kind.add_argument("--audio", type=Path, metavar="FILE", help="ask what is said in this recording")
    parser.add_argument("--prompt", metavar="TEXT", help="ask this")
    parser.add_argument("--model", type=Path, metavar="PATH", help=_MODEL)
    parser.add_argument("--out", type=Path, metavar="DIR", help=_OUT)
    options = parser.parse_args()
    for name in ("audio", "picture"):
        file = getattr(options, name)
        if file is not None and not file.is_file():
            parser.error(f"--{name}: no such file: {file}")
    return options


sys.exit(main())
