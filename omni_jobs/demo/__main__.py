"""The demo: run jobs through a whole pipeline on this machine.

    scripts/demo                     a question spoken, an answer spoken, with real weights: Whisper hears it,
                                     SmolLM2-135M-Instruct thinks (93 MB, downloaded once), a voice speaks; then
                                     the same again while a worker is killed
    scripts/demo --audio FILE        ask what is said in this recording
    scripts/demo --text              one stage: a question in text, answered while you watch
    scripts/demo --picture [FILE]    a drawn scene, or the picture in this file, becomes four times as large with real
                                     weights: Real-ESRGAN on ncnn; before and after are shown
    scripts/demo --omni              text, sound and picture to text and speech in Qwen2.5-Omni's three stages,
                                     with a tiny checkpoint of random weights: noise, but every part is real
    scripts/demo --model PATH        use this causal LM's checkpoint; with --omni that of a Qwen2.5-Omni,
                                     with --picture a directory of networks
    scripts/demo --prompt TEXT       ask this
    scripts/demo --out DIR           write result.json, and the text, sound or picture, to this directory

It starts the embedded stack in a temporary directory, submits over HTTP, shows the jobs' progress, checks the results
and stops everything. The exit status is 0 only if all of this succeeded.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from omni_jobs.cli.interrupts import raised_signals
from omni_jobs.demo.omni import OmniDemo
from omni_jobs.demo.picture import PictureDemo
from omni_jobs.demo.text import TextDemo
from omni_jobs.demo.voice import VoiceDemo
from omni_jobs.demo.walk import Demo, walk
from omni_jobs.errors import OmniJobsError

_DRAWN = Path()  # in place of a file: --picture without one


def main() -> int:
    """Run the demo that the command line chooses, and return the exit status: 0, 1 for a failure, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description=(__doc__ or "").split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--text", action="store_true", help="run the pipeline chat")
    kind.add_argument("--omni", action="store_true", help="run the pipeline qwen2_5_omni")
    kind.add_argument("--picture", nargs="?", type=Path, const=_DRAWN, metavar="FILE", help="run the pipeline upscale")
    kind.add_argument("--audio", type=Path, metavar="FILE", help="a recording of the question")
    parser.add_argument("--prompt", metavar="TEXT", help="the question")
    parser.add_argument("--model", type=Path, metavar="PATH", help="a checkpoint directory")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory for the results")
    options = parser.parse_args()
    for name in ("audio", "picture"):
        file = getattr(options, name)
        if file not in (None, _DRAWN) and not file.is_file():
            parser.error(f"--{name}: no such file: {file}")
    demo = _demo(options)
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


def _demo(options: argparse.Namespace) -> Demo:
    if options.text:
        return TextDemo(options.model, options.prompt)
    if options.omni:
        return OmniDemo(options.model, options.prompt)
    if options.picture is not None:
        return PictureDemo(options.model, None if options.picture == _DRAWN else options.picture)
    return VoiceDemo(options.model, options.prompt, options.audio)


sys.exit(main())
