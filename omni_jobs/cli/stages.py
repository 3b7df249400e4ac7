"""The commands that list stages with their pauses and estimates, and that pause and resume them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect
from omni_jobs.cli.screen import show

if TYPE_CHECKING:
    from datetime import datetime

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
    held = {(each.pipeline, each.stage): each for each in calibrations}
    paused: dict[tuple[str, str], datetime | None] = {}
    for name in dict.fromkeys(pipeline.name for pipeline in pipelines):
        versions = [pipeline for pipeline in pipelines if pipeline.name == name]
        for stage in dict.fromkeys(stage.name for pipeline in versions for stage in pipeline.stages):
            its = {p.version: each.paused_at for p in versions for each in p.stages if each.name == stage}
            if len(set(its.values())) == 1:  # of a stage that its versions have alike, a line
                paused[name, stage] = next(iter(its.values()))
            else:
                paused |= {(f"{name}@{version}", stage): at for version, at in its.items()}
    found = {(pipeline, stage): held.get((pipeline.partition("@")[0], stage)) for pipeline, stage in paused}
    stages = [
        {"pipeline": pipeline, "stage": stage, "paused_at": paused_at, "calibration": found[pipeline, stage]}
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

    PIPELINE is NAME for all versions, or NAME@VERSION for one alone.

    \b
    Examples:
      omni-jobs stages pause echo first
      omni-jobs stages pause echo@1 first
    """
    with connect(url) as client:
        show(client.set_paused(pipeline, stage, True), as_json, _state)


def resume(
    pipeline: options.PipelineArgument,
    stage: options.StageArgument,
    url: options.UrlOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Resume a stage that is paused: its workers claim again. Of NAME that ends the pauses of its versions, too.

    \b
    Example:
      omni-jobs stages resume echo first
    """
    with connect(url) as client:
        show(client.set_paused(pipeline, stage, False), as_json, _state)


def _state(stage: StagePauseView) -> str:
    pipeline = stage.pipeline if stage.version is None else f"{stage.pipeline}@{stage.version}"
    return f"{pipeline} {stage.stage}: {'open' if stage.paused_at is None else 'paused'}"
