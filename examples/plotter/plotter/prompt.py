"""The prompt of the runner ``plotter``."""

from dataclasses import dataclass

from plotter.settings import PlotterParameters

__all__ = ["PlotterPrompt"]


@dataclass(frozen=True, slots=True)
class PlotterPrompt:
    """What is to be drawn; the seed says where the pen sits in its wheel."""

    title: str
    parameters: PlotterParameters
    seed: int
