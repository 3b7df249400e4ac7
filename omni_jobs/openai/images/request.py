"""``asked_generation`` and ``asked_edit``: pictures that a client asks for, as the jobs that make them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.asked import flag, one_of, own_stages, pipeline_of, text_in
from omni_jobs.openai.asked_jobs import AskedJobs, seeds_of
from omni_jobs.openai.client_names import in_client_names, names_of
from omni_jobs.openai.form_body import TakenForm, body_of
from omni_jobs.openai.images.parameters import IMAGE_EDITS, IMAGE_GENERATIONS
from omni_jobs.openai.stage_names import StageNames
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.requests import JobRequest, Upload

MOST_PICTURES: Final = 10
MOST_SOURCES: Final = 16
"""The most pictures to edit."""

MOST_PREVIEWS: Final = 3
_FORMATS = ("png", "jpeg", "webp")
_ANSWERS = ("b64_json", "url")
_DEMANDED = ("negative_prompt", "num_inference_steps", "guidance_scale", "true_cfg_scale")
_WISHED = ("quality", "background", "style", "output_compression")  # ignored where no stage has them
_ASIDE = frozenset({"stream", "partial_images", "response_format"})
_IN_MESSAGE = "messages.0.content"

# A form's fields are text. These are numbers and flags, if they look so.
_TYPED = frozenset(
    {
        "n", "seed", "stream", "partial_images", "output_compression", "num_inference_steps", "guidance_scale",
        "true_cfg_scale",
    }
)  # fmt: skip
_OBJECTS = {"stages": 2}


@dataclass(frozen=True, slots=True)
class WantedPictures:
    """How pictures are to be answered.

    kind            how a stream's events are called
    stream          whether the pictures are streamed, each with up to ``partial_images`` previews
    as_url          whether an answer has URLs of the pictures in their place
    size            ``WIDTHxHEIGHT``, or ``auto``
    has_sources     whether they are made of pictures
    """

    kind: Literal["image_generation", "image_edit"]
    stream: bool
    partial_images: int
    as_url: bool
    size: str
    has_sources: bool


def asked_generation(body: Mapping[str, Any], pipelines: Pipelines) -> AskedJobs[WantedPictures]:
    """Return the jobs that a JSON object asks for, one for each picture.

    Raises InvalidRequest naming the field, NotFound for an unknown model, and PluginBroken.
    """
    return _asked("image_generation", *IMAGE_GENERATIONS.sort(body), pipelines)


def asked_edit(body: Mapping[str, Any], pipelines: Pipelines) -> AskedJobs[WantedPictures]:
    """Return the jobs that an ``EDIT_FORM`` asks for. Raises as ``asked_generation`` does."""
    return _asked("image_edit", *IMAGE_EDITS.sort(body), pipelines)


def _asked(
    kind: Literal["image_generation", "image_edit"],
    taken: Mapping[str, Any],
    ignored: list[str],
    pipelines: Pipelines,
) -> AskedJobs[WantedPictures]:
    takes = "text" if kind == "image_generation" else "image"
    pipeline = pipeline_of(taken, pipelines, takes=takes, makes="image")
    sources = _sources(taken) if kind == "image_edit" else []
    stages = StageNames(pipeline, "image", own_stages(taken))
    size = taken.get("size", "auto")
    if size != "auto":
        stages.set_size(size, "1024x768, or auto")
    _set_others(taken, stages, ignored)
    stream, partial_images = flag(taken, "stream"), _partial_images(taken)
    name_of = names_of(stages.sent | _names(len(sources)))
    asked = {
        "model": pipeline.name,
        "messages": [{"role": "user", "content": _content(taken, sources)}],
        "modalities": ["image"],
        "image": {"format": one_of(taken, "output_format", _FORMATS)},
        "stages": stages.stages,
        "previews": partial_images > 0,
    }
    with in_client_names(name_of):
        requests = [JobRequest.parse(asked | {"seed": seed}) for seed in seeds_of(taken, MOST_PICTURES)]
    as_url = one_of(taken, "response_format", _ANSWERS) == "url"
    if stream and as_url:
        raise InvalidRequest("a stream's events have the pictures themselves", field="response_format")
    answer = WantedPictures(kind, stream, partial_images, as_url, size, bool(sources))
    return AskedJobs(requests, answer, _ASIDE, ignored, name_of)


EDIT_FORM: Final = TakenForm(lambda form: body_of(form, _TYPED, _OBJECTS), MOST_SOURCES + 4)


def _sources(taken: Mapping[str, Any]) -> list[Upload]:
    files = taken.get("image")
    if files is None:
        raise InvalidRequest("is required", field="image")
    if not isinstance(files, list):
        raise InvalidRequest("must be a file", field="image")
    if len(files) > MOST_SOURCES:
        raise InvalidRequest(f"takes {MOST_SOURCES} files at most", field="image")
    return files


def _content(taken: Mapping[str, Any], sources: Sequence[Upload]) -> str | list[dict[str, Any]]:
    """Return the content of the message: the pictures, then the text."""
    prompt = text_in(taken, "prompt")
    if not sources:
        return prompt
    pictures = [{"type": "image_url", "image_url": {"url": source}} for source in sources]
    return [*pictures, {"type": "text", "text": prompt}]


def _names(sources: int) -> dict[str, str]:
    pictures: dict[str, str] = {}
    for number in range(sources):
        name = "image" if sources == 1 else f"image.{number}"
        pictures |= {f"{_IN_MESSAGE}.{number}": name, f"{_IN_MESSAGE}.{number}.*": name}
    return {**pictures, "messages*": "prompt", "image.format": "output_format", "modalities*": "model"}


def _set_others(taken: Mapping[str, Any], stages: StageNames, ignored: list[str]) -> None:
    """Set the parameters of stages, and add to ``ignored`` those wishes that no stage has."""
    for name in _DEMANDED:
        if name in taken:
            stages.demand(name, taken[name])
    for name in _WISHED:
        if name in taken and not stages.set(name, taken[name]):
            if taken[name] == "transparent":
                raise InvalidRequest("this pipeline makes no transparent background", field=name)
            ignored.append(name)


def _partial_images(taken: Mapping[str, Any]) -> int:
    most = taken.get("partial_images", 0)
    if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= MOST_PREVIEWS:
        raise InvalidRequest(f"must be a whole number from 0 to {MOST_PREVIEWS}", field="partial_images")
    if most and not flag(taken, "stream"):
        raise InvalidRequest("given, and stream is not true", field="partial_images")
    return most
