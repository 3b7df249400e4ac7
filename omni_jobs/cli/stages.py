"""The commands that list stages with their pauses and estimates, and that pause and resume them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect
from omni_jobs.cli.screen import show

if TYPE_CHECKING:
    from omni_jobs.views import StagePauseView


def list_(url: options.UrlOption = None, as_json: options.JsonOption = False) -> None:
    """List the stages that the server serves: which are paused, and how many estimates of waits have held.

    About 80 % of the intervals in "estimates held" should hold. It is empty for a stage where no job has waited.

    \b
    Examples:
      omni-jobs stages list
      omni-jobs stages list --json
    """
    from omni_jobs.cli.tables import stages_table

    with connect(url) as client:
        pipelines, calibrations = client.pipelines(), client.calibrations()
    found = {(each.pipeline, each.stage): each for each in calibrations}
    # Of a stage that several versions have, which are paused together, a line.
    paused = {(pipeline.name, stage.name): stage.paused_at for pipeline in pipelines for stage in pipeline.stages}
    stages = [
        {"pipeline": pipeline, "stage": stage, "paused_at": paused_at, "calibration": found.get((pipeline, stage))}
        for (pipeline, stage), paused_at in paused.items()
    ]
    show(stages, as_json, lambda _: stages_table(paused, found))


def pause(
    pipeline: options.PipelineArgument,
    stage: options.StageArgument,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Pause a stage: its workers go on with what they run, and claim nothing more. Deadlines of waiting jobs go on.

    \b
    Example:
      omni-jobs stages pause echo first
    """
    with connect(url) as client:
        show(client.set_paused(pipeline, stage, True), as_json, _state)


def resume(
    pipeline: options.PipelineArgument,
    stage: options.StageArgument,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Resume a stage that is paused: its workers claim again.

    \b
    Example:
      omni-jobs stages resume echo first
    """
    with connect(url) as client:
        show(client.set_paused(pipeline, stage, False), as_json, _state)


def _state(stage: StagePauseView) -> str:
    return f"{stage.pipeline} {stage.stage}: {'open' if stage.paused_at is None else 'paused'}"
