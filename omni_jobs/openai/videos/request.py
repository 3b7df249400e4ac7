"""``VideoRequest``: a video that is asked for, in a form or in JSON, as the job that makes it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.http.form_reader import Form
from omni_jobs.media.formats import KNOWN, format_of
from omni_jobs.openai.asked import own_stages, pipeline_of
from omni_jobs.openai.client_names import in_client_names
from omni_jobs.openai.form_body import body_of, typed_value
from omni_jobs.openai.stage_names import StageNames
from omni_jobs.openai.videos.parameters import VIDEOS
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.requests import JobRequest, Upload

_REFERENCE = "input_reference"
_DEMANDED = (
    "negative_prompt", "num_inference_steps", "guidance_scale", "guidance_scale_2", "true_cfg_scale", "boundary_ratio",
    "flow_shift", "fps", "num_frames",
)  # fmt: skip
_TYPED = frozenset({"seed", *_DEMANDED} - {"negative_prompt"})
_OBJECTS = {"extra_params": 1, "stages": 2}
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_NAMES = {"messages.*_url*": _REFERENCE, "messages*": "prompt", "modalities*": "model"}


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """A video that is asked for, correct in form.

    names  the client's names for fields of the job's request, as ``in_client_names`` takes them
    """

    request: JobRequest
    names: Mapping[str, str]

    @classmethod
    def of(cls, body: Mapping[str, Any], pipelines: Pipelines) -> "VideoRequest":
        """Return the request that a JSON object is, or that ``body_of_video`` made of a form.

        Raises InvalidRequest naming the field, NotFound for an unknown model, and PluginBroken.
        """
        taken, _ = VIDEOS.sort(body)
        pipeline = pipeline_of(taken, pipelines, takes="text", makes="video")
        prompt = taken.get("prompt")
        if not isinstance(prompt, str):
            raise InvalidRequest("is required" if prompt is None else "must be a string", field="prompt")
        content = [*_reference(taken.get(_REFERENCE)), {"type": "text", "text": prompt}]
        stages = StageNames(pipeline, "video", own_stages(taken))
        _set(taken, stages)
        names = {**stages.sent, **_NAMES}
        asked = {
            "model": pipeline.name,
            "messages": [{"role": "user", "content": content}],
            "modalities": ["video"],
            "seed": taken.get("seed"),
            "stages": stages.stages,
        }
        with in_client_names(names):
            return cls(JobRequest.parse(asked), names)


def body_of_video(form: Form) -> dict[str, Any]:
    """Return a form as JSON would have it, its file as an Upload. Raises InvalidRequest naming a field."""
    body = body_of(form, _TYPED, _OBJECTS)
    files = body.get(_REFERENCE)
    if isinstance(files, list):
        if len(files) > 1:
            raise InvalidRequest("this part is given twice", field=_REFERENCE)
        [body[_REFERENCE]] = files
    return body


def _reference(given: Any) -> Iterator[dict[str, Any]]:
    """Yield the part of a message that has the picture or the video, which is told by its bytes."""
    if isinstance(given, Upload):
        kind = next((kind for kind in ("image", "video") if format_of(kind, given.data) is not None), None)
        if kind is None:
            raise InvalidRequest(f"neither {KNOWN['image']} nor {KNOWN['video']}", field=_REFERENCE)
        yield {"type": f"{kind}_url", f"{kind}_url": {"url": given}}
    elif isinstance(given, Mapping):
        for name in given:
            if name != "image_url":
                raise InvalidRequest("not taken: send a file, or image_url", field=f"{_REFERENCE}.{name:.64}")
        yield {"type": "image_url", "image_url": {"url": given.get("image_url")}}
    elif given is not None:
        raise InvalidRequest("must be a file, or an object with image_url", field=_REFERENCE)


def _set(taken: Mapping[str, Any], stages: StageNames) -> None:
    """Set the parameters of stages."""
    if "size" in taken:
        size = _SIZE.fullmatch(taken["size"]) if isinstance(taken["size"], str) else None
        if size is None:
            raise InvalidRequest("must be WIDTHxHEIGHT, as in 832x480", field="size")
        stages.set_size(int(size[1]), int(size[2]))
    if "seconds" in taken:
        seconds = typed_value(taken["seconds"]) if isinstance(taken["seconds"], str) else taken["seconds"]
        stages.demand("seconds", seconds)
    for name in _DEMANDED:
        if name in taken:
            stages.demand(name, taken[name])
    extra = taken.get("extra_params", {})
    if not isinstance(extra, Mapping):
        raise InvalidRequest("must be an object", field="extra_params")
    for name, value in extra.items():
        stages.demand_own(name, value, f"extra_params.{name:.64}")
