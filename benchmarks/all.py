"""The benchmarks of the platform's targets, one after another.

    python -m benchmarks.all --json FILE [--only NAME …] [--quick]

Takes about 50 minutes on two cores, and wants the machine for itself. One that fails
stops none of the others; exit code 1 then. A target that is missed is no failure: the table
says so.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.figures import Figure, report

ROOT = Path(__file__).parents[1]
NAMES = ("engine", "pipeline", "control_plane", "handoff", "backlog", "fairness", "submit", "idle", "startup")


def main() -> int:
    arguments = _arguments()
    names = arguments.only or NAMES
    console = Console(stderr=True)
    figures: list[Figure] = []
    failed: list[str] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, tempfile.TemporaryDirectory() as directory:
        bar = progress.add_task("", total=len(names))
        for name in names:
            progress.update(bar, description=name)
            found, errors = _run(name, Path(directory), quick=arguments.quick)
            figures += found
            if errors is not None:
                failed.append(name)
                progress.console.print(f"{name} failed:\n{errors}", markup=False)
            progress.advance(bar)
    report(figures, arguments.json)
    return 1 if failed else 0


def _run(name: str, directory: Path, *, quick: bool) -> tuple[list[Figure], str | None]:
    """What it found, named after it; the end of what it said when it failed."""
    written = directory / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(written), *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return [], (done.stdout + done.stderr)[-4000:]
    found = json.loads(written.read_text(encoding="utf-8"))
    return [Figure(**{**item, "name": f"{name}: {item['name']}"}) for item in found], None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures of all here")
    parser.add_argument("--only", action="append", choices=NAMES, help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few jobs, one run of each: whether they work")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
