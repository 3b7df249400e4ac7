"""The input processor: a request's text becomes a title."""

from omni_jobs.pipelines.stage_config import StageConfig
from plotter.prompt import PlotterPrompt
from plotter.settings import PlotterParameters
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput

__all__ = ["PlotterProcessor"]


class PlotterProcessor:
    """Takes the last message's text."""

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Do nothing: a plotter has no checkpoint."""

    def __call__(self, stage_input: StageInput[PlotterParameters]) -> PlotterPrompt:
        """Return the prompt."""
        content = stage_input.request["messages"][-1]["content"]
        title = content if isinstance(content, str) else " ".join(part["text"] for part in content)
        return PlotterPrompt(title, stage_input.parameters, stage_input.seed)
