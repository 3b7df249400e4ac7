"""What the benchmarks of chat against another server share: their words, their options and their checkpoint."""

import argparse
from pathlib import Path

from rich.console import Console

from demo.checkpoints import smollm2_checkpoint

NEW_TOKENS = 64
WORDS = "The lighthouse keeper writes down what the sea brings every night, and reads it aloud in the morning. "


def chat_arguments(doc: str | None, things: str, at_once: int) -> argparse.Namespace:
    """Return the options of a benchmark that sends ``things``, jobs say; with --quick they are few."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--model", type=Path, help="a causal LM's checkpoint directory")
    parser.add_argument(f"--{things}", type=int, default=at_once, help=f"at once (default {at_once})")
    parser.add_argument("--runs", type=int, default=5, help="times each side, alternating (default 5)")
    parser.add_argument("--quick", action="store_true", help=f"a tiny model, few {things}, one run: whether it works")
    arguments = parser.parse_args()
    if arguments.quick:
        setattr(arguments, things, 8)
        arguments.runs = 1
    return arguments


def chat_checkpoint(arguments: argparse.Namespace, directory: Path) -> Path:
    """Return the checkpoint of --model, a tiny one below ``directory`` with --quick, or SmolLM2, fetched once."""
    if arguments.model is not None:
        return Path(arguments.model)
    if not arguments.quick:
        return smollm2_checkpoint(Console())
    from tests.oracles.causal_lm import build_causal_lm

    (directory / "checkpoint").mkdir()
    return build_causal_lm(directory / "checkpoint")
