"""``submit --size``: the width and height of the picture that a job makes, for the stages that have such parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_jobs.views import PipelineView, StageView

_OPTION = "--size"


def picture_size(text: str) -> dict[str, int]:
    """Return the ``width`` and ``height``, in pixels, that a text such as ``1024x768`` says. Raises BadParameter."""
    found = re.fullmatch(r"(\d{1,9})[xX×](\d{1,9})", text, re.ASCII)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not WIDTHxHEIGHT, such as 1024x768", param_hint=_OPTION)
    return {"width": int(found[1]), "height": int(found[2])}


def stages_of_size(
    size: Mapping[str, int], request: Mapping[str, Any], pipeline: PipelineView
) -> dict[str, dict[str, Any]]:
    """Return a request's ``stages`` with this size for all stages that the job runs and that have one.

    Whether a stage takes the size, the server says. Raises BadParameter if no stage has a width and a height, and if
    the request sets another one.
    """
    modalities = request.get("modalities") or _default_modalities(pipeline)
    stages = {name: dict(values) for name, values in request.get("stages", {}).items()}
    sized = [stage.name for stage in _run_by(pipeline, modalities) if size.keys() <= stage.parameters.keys()]
    if not sized:
        made = " and ".join(modalities)
        raise typer.BadParameter(
            f"no stage of {pipeline.name} that makes {made} has a width and a height", param_hint=_OPTION
        )
    for name in sized:
        values = stages.setdefault(name, {})
        for side, length in size.items():
            if values.setdefault(side, length) != length:
                raise typer.BadParameter(f"--param sets another {name}.{side}", param_hint=_OPTION)
    return stages


def _default_modalities(pipeline: PipelineView) -> Sequence[str]:
    """Return the modalities of a request that names none: text, or the first that the pipeline makes."""
    return ["text"] if "text" in pipeline.modalities else pipeline.modalities[:1]


def _run_by(pipeline: PipelineView, modalities: Sequence[str]) -> list[StageView]:
    """Return the stages that a job with these modalities runs: those that make them, and their inputs' makers."""
    by_name = {stage.name: stage for stage in pipeline.stages}
    wanted = [made.stage for made in pipeline.outputs if made.modality in modalities]
    run: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in by_name and name not in run:
            run.add(name)
            wanted += by_name[name].inputs
    return [stage for stage in pipeline.stages if stage.name in run]
