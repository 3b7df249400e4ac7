"""``ImageRequest``: pictures that a client asks for, drawn or made of others, as the jobs that make them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from omni_jobs.errors import InvalidRequest
from omni_jobs.http.form_reader import Form
from omni_jobs.openai.asked import one_of, own_stages, pipeline_of
from omni_jobs.openai.client_names import in_client_names
from omni_jobs.openai.form_body import body_of
from omni_jobs.openai.images.parameters import IMAGE_EDITS, IMAGE_GENERATIONS
from omni_jobs.openai.several_jobs import seeds_of, submissions_of
from omni_jobs.openai.stage_names import StageNames
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.requests import JobRequest, Submission, Upload
from omni_jobs.tenants.caller import Caller

MOST_PICTURES: Final = 10
MOST_SOURCES: Final = 16
"""The most pictures to edit."""

MOST_PREVIEWS: Final = 3
_FORMATS = ("png", "jpeg", "webp")
_ANSWERS = ("b64_json", "url")
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_DEMANDED = ("negative_prompt", "num_inference_steps", "guidance_scale", "true_cfg_scale")
_WISHED = ("quality", "background", "style", "output_compression")  # ignored where no stage has them
_OF_ANSWER = frozenset({"stream", "partial_images", "response_format"})
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
    """How pictures are to be answered. It holds nothing of the request's media, because an answer may be late.

    kind            how a stream's events are called
    stream          whether the pictures are streamed, each with up to ``partial_images`` previews
    as_url          whether an answer has URLs of the pictures in their place
    size            ``WIDTHxHEIGHT``, or ``auto``
    has_sources     whether they are made of pictures
    ignored         the names of what is ignored
    names           the client's names for fields of a job's request, as ``in_client_names`` takes them
    """

    kind: Literal["image_generation", "image_edit"]
    stream: bool
    partial_images: int
    as_url: bool
    size: str
    has_sources: bool
    ignored: tuple[str, ...]
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """Pictures that are asked for, correct in form: the requests of their jobs, one for each picture."""

    requests: tuple[JobRequest, ...]
    answer: WantedPictures

    @classmethod
    def generation(cls, body: Mapping[str, Any], pipelines: Pipelines) -> "ImageRequest":
        """Return the request that a JSON object is.

        Raises InvalidRequest naming the field, NotFound for an unknown model, and PluginBroken.
        """
        taken, ignored = IMAGE_GENERATIONS.sort(body)
        return cls._of("image_generation", taken, ignored, pipelines)

    @classmethod
    def edit(cls, body: Mapping[str, Any], pipelines: Pipelines) -> "ImageRequest":
        """Return the request that ``body_of_edit`` made of a form. Raises as ``generation`` does."""
        taken, ignored = IMAGE_EDITS.sort(body)
        return cls._of("image_edit", taken, ignored, pipelines)

    @classmethod
    def _of(
        cls,
        kind: Literal["image_generation", "image_edit"],
        taken: Mapping[str, Any],
        ignored: list[str],
        pipelines: Pipelines,
    ) -> "ImageRequest":
        takes = "text" if kind == "image_generation" else "image"
        pipeline = pipeline_of(taken, pipelines, takes=takes, makes="image")
        sources = _sources(taken) if kind == "image_edit" else []
        stages = StageNames(pipeline, "image", own_stages(taken))
        size = _set_size(taken, stages)
        _set_others(taken, stages, ignored)
        stream, partial_images = _flag(taken, "stream"), _partial_images(taken)
        names = stages.sent | _names(len(sources))
        asked = {
            "model": pipeline.name,
            "messages": [{"role": "user", "content": _content(taken, sources)}],
            "modalities": ["image"],
            "image": {"format": one_of(taken, "output_format", _FORMATS)},
            "stages": stages.stages,
            "previews": partial_images > 0,
        }
        with in_client_names(names):
            requests = [JobRequest.parse(asked | {"seed": seed}) for seed in seeds_of(taken, MOST_PICTURES)]
        as_url = one_of(taken, "response_format", _ANSWERS) == "url"
        if stream and as_url:
            raise InvalidRequest("a stream's events have the pictures themselves", field="response_format")
        return cls(
            tuple(requests),
            WantedPictures(kind, stream, partial_images, as_url, size, bool(sources), tuple(ignored), names),
        )

    def submissions(self, body: Mapping[str, Any], size: int, caller: Caller, key: str | None) -> list[Submission]:
        """Return a submission for each picture. ``body``, of ``size`` bytes, is what was sent, with ``key``.

        How the answer is sent is no part of it: what broke off as a stream may be asked for whole, with the same key.
        """
        sent = {name: value for name, value in body.items() if name not in _OF_ANSWER}
        return submissions_of(self.requests, sent, size, caller, key)


def body_of_edit(form: Form) -> dict[str, Any]:
    """Return a form as JSON would have it, its files as Uploads. Raises InvalidRequest naming a field."""
    return body_of(form, _TYPED, _OBJECTS)


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
    prompt = taken.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidRequest("is required" if prompt is None else "must be a string", field="prompt")
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


def _set_size(taken: Mapping[str, Any], stages: StageNames) -> str:
    size = taken.get("size", "auto")
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is not None:
        stages.set_size(int(found[1]), int(found[2]))
    elif size != "auto":
        raise InvalidRequest("must be WIDTHxHEIGHT, as in 1024x768, or auto", field="size")
    return str(size)


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
    if most and not _flag(taken, "stream"):
        raise InvalidRequest("given, and stream is not true", field="partial_images")
    return most


def _flag(taken: Mapping[str, Any], name: str) -> bool:
    value = taken.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest("must be true or false", field=name)
    return value
