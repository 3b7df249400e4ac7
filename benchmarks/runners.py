"""The AR and the diffusion runner, old against new, in one run.

    python -m benchmarks.runners --json FILE [--runs 5] [--quick]

What is measured, and how: benchmarks.ar_runner and benchmarks.diffusion_runner.
"""

import argparse
from pathlib import Path

from benchmarks import ar_runner, diffusion_runner
from benchmarks.figures import report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--runs", type=int, default=5, help="times each side, alternating (default 5)")
    parser.add_argument("--quick", action="store_true", help="few requests, one run: whether it works")
    arguments = parser.parse_args()
    runs = 1 if arguments.quick else arguments.runs
    found = [
        *ar_runner.figures(runs=runs, quick=arguments.quick),
        *diffusion_runner.figures(runs=runs, quick=arguments.quick),
    ]
    report(found, arguments.json)


if __name__ == "__main__":
    main()
