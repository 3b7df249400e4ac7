"""``asked_video``: a video that a client asks for, in a form or in JSON, as the job that makes it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from omni_jobs.errors import InvalidRequest
from omni_jobs.http.form_reader import Form
from omni_jobs.media.formats import KNOWN, format_of
from omni_jobs.openai.asked import own_stages, pipeline_of, text_in
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.client_names import in_client_names, names_of
from omni_jobs.openai.form_body import TakenForm, body_of, typed_value
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
_NAMES = {"messages.*_url*": _REFERENCE, "messages*": "prompt", "modalities*": "model"}


def asked_video(body: Mapping[str, Any], pipelines: Pipelines) -> AskedJobs[None]:
    """Return the job that a JSON object, or a ``VIDEO_FORM``, asks for.

    Raises InvalidRequest naming the field, NotFound for an unknown model, and PluginBroken.
    """
    taken, ignored = VIDEOS.sort(body)
    pipeline = pipeline_of(taken, pipelines, takes="text", makes="video")
    prompt = {"type": "text", "text": text_in(taken, "prompt")}
    content = [*_reference(taken.get(_REFERENCE)), prompt]
    stages = StageNames(pipeline, "video", own_stages(taken))
    _set(taken, stages)
    name_of = names_of({**stages.sent, **_NAMES})
    asked = {
        "model": pipeline.name,
        "messages": [{"role": "user", "content": content}],
        "modalities": ["video"],
        "seed": taken.get("seed"),
        "stages": stages.stages,
    }
    with in_client_names(name_of):
        return AskedJobs([JobRequest.parse(asked)], None, ignored=ignored, name_of=name_of, goes_on=True)


def _fields_of(form: Form) -> dict[str, Any]:
    body = body_of(form, _TYPED, _OBJECTS)
    files = body.get(_REFERENCE)
    if isinstance(files, list):
        if len(files) > 1:
            raise InvalidRequest("this part is given twice", field=_REFERENCE)
        [body[_REFERENCE]] = files
    return body


VIDEO_FORM: Final = TakenForm(_fields_of, most_files=2, or_json=True)


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
        stages.set_size(taken["size"], "832x480")
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
