"""Damaged payloads to the decoders, a great many of them:

    python -m tests.fuzz.payloads --inputs 1000000 --seed 1 --json FILE [--minutes M] [--corpus DIRECTORY]

Every input goes to both decoders, ``Payload.decode`` and ``PromptEmbedsPayload.decode``; what they
owe stands in ``tests/fuzz/answers.py``. An input is drawn from the seed and its number alone, so
that a finding can be had again. What breaks a decoder is kept as ``found-…`` beside the JSON, and
the exit code is 1. ``--corpus`` writes the shortest input of each kind of answer.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field
from hashlib import blake2s
from pathlib import Path
from typing import Final

from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from tests.fuzz.answers import LONGEST_S, Broken, Decoder, answer, peak_bound
from tests.fuzz.corpus import Collected
from tests.fuzz.mutations import Mutator
from tests.fuzz.seeds import seeds

__all__ = ["Fuzzed", "fuzz"]

_PEAK_EVERY: Final = 50  # inputs whose memory is measured, and all that are large
_LARGE: Final = 16 << 10


@dataclass
class Fuzzed:
    """What a run met.

    accepted   how often a decoder accepted
    slowest_s  CPU time of the slowest decode whose memory was not measured beside it
    peaks      measured: the most memory, as a share of its bound
    broken     (why, decoder, input): what a decoder did not keep
    """

    inputs: int = 0
    wall_s: float = 0.0
    accepted: int = 0
    slowest_s: float = 0.0
    measured: int = 0
    highest_share: float = 0.0
    broken: list[tuple[str, Decoder, bytes]] = field(default_factory=list)
    collected: Collected = field(default_factory=Collected)

    def ask(self, decoder: Decoder, data: bytes, *, with_peak: bool) -> None:
        try:
            found = answer(decoder, data, with_peak=with_peak)
        except Broken as error:
            self.broken.append((str(error), decoder, data))
            return
        self.accepted += found.error is None
        self.collected.add(decoder, data, found)
        if found.peak is None:
            self.slowest_s = max(self.slowest_s, found.cpu_s)
        else:
            self.measured += 1
            self.highest_share = max(self.highest_share, found.peak / peak_bound(data))

    def figures(self) -> list[Figure]:
        return [
            figure("inputs, each to both decoders", "", [self.inputs]),
            figure("inputs per second", "1/s", [self.inputs / self.wall_s]),
            figure("broken promises", "", [len(self.broken)], at_most=0),
            figure("accepted", "", [self.accepted]),
            figure("kinds of answers", "", [len(self.collected)]),
            figure("slowest decode, CPU time", "s", [self.slowest_s], at_most=LONGEST_S),
            figure("decodes whose memory was measured", "", [self.measured]),
            figure("most memory, as a share of its bound", "", [self.highest_share], at_most=1),
        ]


def fuzz(inputs: int, seed: int, *, until: float | None = None, progress: Progress | None = None) -> Fuzzed:
    """Ask both decoders about that many inputs, or until that ``time.monotonic()``."""
    fuzzed = Fuzzed()
    mutator = Mutator(seeds(), seed)
    task = None if progress is None else progress.add_task("fuzzing", total=inputs)
    begin = time.monotonic()
    for index in range(inputs):
        data = mutator.damaged(index)
        with_peak = index % _PEAK_EVERY == 0 or (len(data) > _LARGE and index % 2 == 0)
        for decoder in Decoder:
            fuzzed.ask(decoder, data, with_peak=with_peak)
        fuzzed.inputs += 1
        if index % 1000 == 0:
            if progress is not None and task is not None:
                progress.update(task, completed=index, description=f"{len(fuzzed.broken)} broken")
            if until is not None and time.monotonic() > until:
                break
    fuzzed.wall_s = time.monotonic() - begin
    return fuzzed


def main() -> None:
    arguments = _arguments()
    until = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    with Progress() as progress:
        fuzzed = fuzz(arguments.inputs, arguments.seed, until=until, progress=progress)
    report(fuzzed.figures(), arguments.json)
    if arguments.corpus is not None:
        fuzzed.collected.write(arguments.corpus)
    for why, decoder, data in fuzzed.broken:
        path = arguments.json.with_name(f"found-{decoder.value}-{blake2s(data, digest_size=6).hexdigest()}.safetensors")
        path.write_bytes(data)
        print(f"{path}: {why}", file=sys.stderr)
    if fuzzed.broken:
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many (default 1,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn from (default 1)")
    parser.add_argument("--minutes", type=float, help="stop after so long, even if not done")
    parser.add_argument("--json", type=Path, required=True, help="write the figures here")
    parser.add_argument("--corpus", type=Path, help="write the shortest input of each kind of answer here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
