"""Runners load the models of stages and run their prompts; ``create_runner`` makes the runner of one stage."""

from omni_jobs.errors import PluginBroken
from omni_jobs.pipelines.plugins import named_class
from omni_jobs.pipelines.stage_config import StageConfig
from workers.runners.runner import Runner
from workers.stages.engine_args import OmniEngineArgs

__all__ = ["create_runner"]


def create_runner(stage: StageConfig, args: OmniEngineArgs) -> Runner:
    """Return the runner of one stage, not yet started; only the modules of its kind are imported.

    Raises ConfigError for a component that the runner cannot run, and PluginBroken for a class that is no runner.
    """
    runner_class = named_class(stage.runner.implementation, object)
    missing = [name for name in ("start", "run", "close", "healthy") if not hasattr(runner_class, name)]
    if missing:
        raise PluginBroken(f"{stage.runner.implementation} is no runner: it has no {', no '.join(missing)}")
    return runner_class(args)  # type: ignore[call-arg, return-value]
