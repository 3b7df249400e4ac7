"""The input processor: a request's text becomes a title."""

from omni_jobs.errors import ModelError
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

    def __call__(self, stage_input: StageInput) -> PlotterPrompt:
        """Return the prompt. Raises ModelError for parameters of another kind of stage."""
        if not isinstance(stage_input.parameters, PlotterParameters):
            raise ModelError("a plotter has a plotter's parameters", field="parameters")
        content = stage_input.request["messages"][-1]["content"]
        title = content if isinstance(content, str) else " ".join(part["text"] for part in content)
        return PlotterPrompt(title, stage_input.parameters, stage_input.seed)
