"""The runners, by the kind of their stage."""

from __future__ import annotations

from omni_jobs.errors import ConfigError
from omni_jobs.stage_config import StageConfig
from workers.engine_args import OmniEngineArgs
from workers.runners.base import Runner

__all__ = ["create_runner"]


def create_runner(stage: StageConfig, args: OmniEngineArgs | None) -> Runner:
    """The runner of one stage, not yet started; each kind imports only what it needs."""
    if stage.kind == "echo":
        from workers.runners.echo import EchoRunner

        return EchoRunner()
    if args is None:
        raise ConfigError(f"kind {stage.kind} needs a model", field="kind", stage=stage.name)
    if stage.kind == "ar":
        from workers.runners.ar import ARRunner

        return ARRunner(args)
    from workers.runners.engine_process import EngineProcess

    return EngineProcess(args)
