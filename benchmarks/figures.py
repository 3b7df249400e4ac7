"""What a benchmark found: named medians, written as JSON and shown as a table."""

import json
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from os import cpu_count
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["Figure", "figure", "report"]


@dataclass(frozen=True)
class Figure:
    """One measured thing; ``value`` is the median of ``runs``."""

    name: str
    value: float
    unit: str
    runs: Sequence[float]
    target: float | None = None
    met: bool | None = None
    machine: str = field(
        default_factory=lambda: f"{cpu_count()} × {platform.machine()}, Python {platform.python_version()}"
    )


def figure(
    name: str, unit: str, runs: Sequence[float], *, at_least: float | None = None, at_most: float | None = None
) -> Figure:
    """The median of the runs, and whether it meets the target, of which there is one at most."""
    value = statistics.median(runs)
    if at_least is not None:
        return Figure(name, value, unit, list(runs), at_least, value >= at_least)
    if at_most is not None:
        return Figure(name, value, unit, list(runs), at_most, value <= at_most)
    return Figure(name, value, unit, list(runs))


def report(figures: Iterable[Figure], to: Path | None) -> None:
    """Show all as a table; write them to ``to`` as a JSON list."""
    figures = list(figures)
    table = Table("figure", "median", "unit", "lowest", "highest", "runs", "target")
    for item in figures:
        spread = (f"{min(item.runs):.3g}", f"{max(item.runs):.3g}", str(len(item.runs)))
        target = "" if item.target is None else f"{item.target:g}: {'met' if item.met else 'missed'}"
        table.add_row(item.name, f"{item.value:.3g}", item.unit, *spread, target)
    Console().print(table)
    if to is not None:
        to.write_text(json.dumps([asdict(item) for item in figures], indent=2) + "\n", encoding="utf-8")
