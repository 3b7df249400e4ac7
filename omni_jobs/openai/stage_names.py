"""``StageNames``: the parameters of a pipeline's stages, under the names that clients have for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from omni_jobs.errors import InvalidRequest
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.requests.complaints import words_of

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "negative_prompt": ("negative_prompt",),
    "num_inference_steps": ("steps", "num_inference_steps"),
    "guidance_scale": ("guidance_scale",),
    "true_cfg_scale": ("true_cfg_scale",),
    "quality": ("quality",),
    "background": ("background",),
    "style": ("style",),
    "output_compression": ("output_compression",),
    "seconds": ("seconds",),
    "guidance_scale_2": ("guidance_scale_2",),
    "boundary_ratio": ("boundary_ratio",),
    "flow_shift": ("flow_shift",),
    "fps": ("fps",),
    "num_frames": ("num_frames",),
}
"""A client's name → what stages call it, some so and some so."""

_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")


class StageNames:
    """What a client sets of the stages that make ``modality``, as a job's ``stages``.

    stages  the parameters by stage: those that the client wrote so itself, and those that were set
    sent    the field of each parameter that was set, such as ``stages.denoise.steps`` → the client's name
    """

    def __init__(self, pipeline: Pipeline, modality: str, stages: Mapping[str, Mapping[str, Any]]) -> None:
        """``stages``: what the client wrote so itself."""
        self._pipeline = pipeline
        self._running = pipeline.stages_for([modality])
        self.stages = {name: dict(values) for name, values in stages.items()}
        self.sent: dict[str, str] = {}

    def set(self, name: str, value: Any) -> bool:
        """Set a parameter in all stages that have it, and return whether one has. ``name``: one of ``NAMES``.

        Raises InvalidRequest naming it if the client has set another value in ``stages``.
        """
        for own in NAMES[name]:
            if stages := [stage for stage in self._running if stage.has_parameter(own)]:
                self._set(stages, {own: value}, name)
                return True
        return False

    def demand(self, name: str, value: Any) -> None:
        """Set a parameter as ``set`` does. Raises InvalidRequest naming it if no stage has it."""
        if not self.set(name, value):
            raise self._nobody_has(name)

    def demand_own(self, own: str, value: Any, name: str) -> None:
        """Set a parameter that a client names as stages do, in an object whose field for it is ``name``.

        Raises InvalidRequest naming it if no stage has it, or if the client has set another value.
        """
        stages = [stage for stage in self._running if stage.has_parameter(own)]
        if not stages:
            raise self._nobody_has(name)
        self._set(stages, {own: value}, name)

    def _nobody_has(self, name: str) -> InvalidRequest:
        return InvalidRequest(f"no stage of pipeline {self._pipeline.name} has it as a parameter", field=name)

    def set_size(self, size: Any, such: str) -> None:
        """Set the size, WIDTHxHEIGHT in pixels. ``such``: what a client may send, for the error.

        Raises InvalidRequest naming ``size`` for another form, for sides that a stage does not take, which the message
        tells, and if no stage has a size, or has another one.
        """
        found = _SIZE.fullmatch(size) if isinstance(size, str) else None
        if found is None:
            raise InvalidRequest(f"must be WIDTHxHEIGHT, as in {such}", field="size")
        for values in ({"width": int(found[1]), "height": int(found[2])}, {"size": size}):
            if stages := [stage for stage in self._running if all(stage.has_parameter(own) for own in values)]:
                self._set(stages, values, "size")
                _check_sides(stages, values)
                return
        raise InvalidRequest(f"pipeline {self._pipeline.name} takes no size", field="size")

    def _set(self, stages: list[StageConfig], values: Mapping[str, Any], name: str) -> None:
        for stage in stages:
            given = self.stages.setdefault(stage.name, {})
            for own, value in values.items():
                if given.setdefault(own, value) != value:
                    raise InvalidRequest(f"given twice, and not the same: see stages.{stage.name}.{own}", field=name)
                self.sent[f"stages.{stage.name}.{own}"] = name


def _check_sides(stages: Sequence[StageConfig], values: Mapping[str, Any]) -> None:
    """Raise InvalidRequest that tells of each side what is wrong with it. The stage itself names the first alone."""
    for stage in stages:
        problems = {own: _problem(stage, own, value) for own, value in values.items()}
        wrong = [problem if own == "size" else f"{own}: {problem}" for own, problem in problems.items() if problem]
        if wrong:
            raise InvalidRequest("; ".join(wrong), field="size")


def _problem(stage: StageConfig, own: str, value: Any) -> str | None:
    """Return why a stage does not take a value of a parameter, whatever the others are; None: it does."""
    try:
        beyond = stage.beyond_limits({own: value})
    except ValidationError as error:
        found = [each for each in error.errors(include_url=False, include_input=False) if each["loc"][:1] == (own,)]
        return words_of(found[0]) if found else None
    return f"{beyond.problem} (a limit of this pipeline)" if beyond is not None and beyond.limit == own else None
