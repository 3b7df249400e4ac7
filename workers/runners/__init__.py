"""Runners load the models of stages and run their prompts; ``create_runner`` makes the runner of one stage."""

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.stage_config import StageConfig
from workers.runners.runner import Runner
from workers.stages.engine_args import OmniEngineArgs

__all__ = ["create_runner"]


def create_runner(stage: StageConfig, args: OmniEngineArgs | None) -> Runner:
    """Return the runner of one stage, not yet started; only the modules of the stage's kind are imported.

    ``args`` is None for a stage without a model. Raises ConfigError when the stage's kind needs a model, or when no AR
    stage can run this component.
    """
    if stage.kind == "echo":
        from workers.runners.echo import EchoRunner

        return EchoRunner()
    if args is None:
        raise ConfigError(f"kind {stage.kind} needs a model", field="kind", stage=stage.name)
    if stage.kind == "ar":
        from workers.runners.ar.ar_runner import ARRunner

        return ARRunner(args)
    from workers.runners.diffusion.engine_process import EngineProcess

    return EngineProcess(args)
