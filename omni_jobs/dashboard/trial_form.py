"""``TrialForm``: the form in which a person tries a pipeline, and the request that it makes: the JSON of a submit.

Its fields have the names by which errors of the API name them, so that an error stands beside its field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omni_jobs.dashboard.declared_fields import DeclaredField, declared_fields
from omni_jobs.errors import InvalidRequest
from omni_jobs.http.form_reader import Form
from omni_jobs.pipelines.outputs import OutputFormat, output
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.requests import Upload

_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "audio": ("input_audio", "data"),
    "image": ("image_url", "url"),
    "video": ("video_url", "url"),
}
"""Of each kind of file the type of its part of a message, and where its bytes stand in that."""
_DRAWN: Final = ("image", "video")
_GENERAL: Final = (
    *("model", "once", "text", "system", "modalities"),
    *("audio.voice", "seed", "previews", "keep_payloads"),
)
_CHECKED: Final = "on"


@dataclass(frozen=True, slots=True)
class StageFields:
    """The fields of a stage. ``modalities``: the outputs for which it is needed."""

    stage: str
    modalities: Sequence[str]
    fields: Sequence[DeclaredField]


@dataclass(frozen=True, slots=True)
class OutputField:
    """An output that a job may ask for. ``formats``: those to choose from, the default first."""

    modality: str
    formats: Sequence[OutputFormat]
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class TrialForm:
    """The form for a pipeline.

    files    the kinds of files that it takes
    outputs  what it makes
    stages   its stages that have parameters
    """

    pipeline: Pipeline
    files: Sequence[str]
    outputs: Sequence[OutputField]
    stages: Sequence[StageFields]

    @classmethod
    def of(cls, pipeline: Pipeline) -> "TrialForm":
        """Return the form for a pipeline. Raises ConfigError for a plug-in that is not there, and PluginBroken."""
        made = tuple(pipeline.outputs)
        chosen = {"text"} if "text" in made else set(made[:1])
        if "audio" in pipeline.accepts and "audio" in made:
            chosen.add("audio")  # who speaks is answered aloud
        outputs = [OutputField(each, _formats(each), each in chosen) for each in made]
        stages = [
            StageFields(stage.name, _needed_for(pipeline, stage), fields)
            for stage in pipeline.stages.values()
            if (fields := declared_fields(stage))
        ]
        return cls(pipeline, [each for each in _PARTS if each in pipeline.accepts], outputs, stages)

    @property
    def takes_text(self) -> bool:
        """Whether the pipeline takes a text."""
        return "text" in self.pipeline.accepts

    @property
    def has_options(self) -> bool:
        """Whether there is anything to choose of what the pipeline makes."""
        return len(self.outputs) > 1 or bool(self.outputs[0].formats)

    @property
    def draws(self) -> bool:
        """Whether the pipeline makes pictures, of which there may be previews."""
        return any(each.modality in _DRAWN for each in self.outputs)

    @property
    def can_be_forked(self) -> bool:
        """Whether a job has a stage from which it can be run anew with something else."""
        return len(self.pipeline.stages) > 1

    @property
    def names(self) -> set[str]:
        """The names of its fields."""
        formats = {f"{each.modality}.format" for each in self.outputs}
        return {*_GENERAL, *self.files, *formats, *(each.name for each in self._fields)}

    def request(self, form: Form) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the request that a form makes, media as Uploads, and what is wrong with its fields, by their names.

        What is wrong is left out of the request. What the pipeline says of the rest is not known yet.
        """
        problems: dict[str, str] = {}
        known = self.names
        for name in (*form.texts, *form.files):
            if name not in known:
                problems[""] = f"there is no field {name!r:.80} any more: look at the page anew"
        request: dict[str, Any] = {
            "model": self.pipeline.name,
            "messages": self._messages(form, problems),
            "modalities": form.texts.get("modalities") or None,
            **_options(form),
            "stages": self._parameters(form, problems) or None,
            "seed": _seed(form, problems),
            "previews": _is_checked(form, "previews"),
            "keep_payloads": _is_checked(form, "keep_payloads"),
        }
        return {name: value for name, value in request.items() if value is not None}, problems

    def place_of(self, field: str | None, form: Form) -> str:
        """Return the name of the field beside which an error of the API stands; "" for none."""
        parts = (field or "").split(".")
        if parts[0] == "messages":
            return self._place_in_messages(parts[1:], form)
        names = self.names
        return next((name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in names), "")

    @property
    def _fields(self) -> list[DeclaredField]:
        return [field for stage in self.stages for field in stage.fields]

    def _messages(self, form: Form, problems: dict[str, str]) -> list[dict[str, Any]]:
        parts = [self._part(kind, data, problems) for kind, data in self._files(form)]
        text = _text(form, "text")
        if text or not parts:
            if not text:
                problems.setdefault(self._first, self._missing)
            parts.append({"type": "text", "text": text})
        system = _text(form, "system")
        before = [{"role": "system", "content": system}] if system else []
        return [*before, {"role": "user", "content": parts}]

    def _part(self, kind: str, data: memoryview, problems: dict[str, str]) -> dict[str, Any]:
        if not data:
            problems[kind] = "a file is empty"
        part, within = _PARTS[kind]
        return {"type": part, part: {within: Upload(data)}}

    def _files(self, form: Form) -> list[tuple[str, memoryview]]:
        return [(kind, data) for kind in self.files for data in form.files.get(kind, [])]

    @property
    def _first(self) -> str:
        """The field of the message that comes first."""
        return "text" if self.takes_text else next(iter(self.files), "")

    @property
    def _missing(self) -> str:
        words = [*(["type something"] if self.takes_text else []), *(["attach a file"] if self.files else [])]
        return " or ".join(words) or "this pipeline takes what no form has"

    def _place_in_messages(self, parts: Sequence[str], form: Form) -> str:
        has_system = bool(_text(form, "system"))
        if has_system and parts[:1] == ["0"]:
            return "system"
        kinds = [kind for kind, _ in self._files(form)]
        match parts:
            case [_, "content", str(at), *_] if at.isdecimal() and int(at) < len(kinds):
                return kinds[int(at)]
            case [_, "content", missing, *_]:
                return next((kind for kind in self.files if _PARTS[kind][0] == missing), self._first)
        return self._first

    def _parameters(self, form: Form, problems: dict[str, str]) -> dict[str, dict[str, Any]]:
        chosen: dict[str, dict[str, Any]] = {}
        for stage in self.stages:
            for field in stage.fields:
                texts = [_unix(text) for text in form.texts.get(field.name, [])]
                if not field.is_given(texts):
                    continue
                try:
                    chosen.setdefault(stage.stage, {})[field.label] = field.read(texts)
                except InvalidRequest as error:
                    problems[field.name] = error.message
        return chosen


def _formats(modality: str) -> Sequence[OutputFormat]:
    return output(modality).formats if modality in _PARTS else ()  # a request names the format of these


def _needed_for(pipeline: Pipeline, stage: StageConfig) -> list[str]:
    return [each for each in pipeline.outputs if stage in pipeline.stages_for([each])]


def _options(form: Form) -> dict[str, dict[str, Any] | None]:
    """Return the options of the outputs, those alone that a form sets."""
    options: dict[str, dict[str, Any] | None] = {}
    for modality in _PARTS:
        format, voice = form.texts.get(f"{modality}.format", [""])[0], form.texts.get(f"{modality}.voice", [""])[0]
        options[modality] = ({"format": format} if format else {}) | ({"voice": voice} if voice else {}) or None
    return options


def _seed(form: Form, problems: dict[str, str]) -> int | None:
    text = (form.only_text("seed") or "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        problems["seed"] = "must be a whole number"
        return None
    return int(text)


def _is_checked(form: Form, name: str) -> bool | None:
    """Return True for a box that is checked; None: the request says nothing of it."""
    return True if form.texts.get(name) == [_CHECKED] else None


def _text(form: Form, name: str) -> str:
    return _unix(form.only_text(name) or "")


def _unix(text: str) -> str:
    """Return a text with the ends of lines that JSON has for it: a form sends others."""
    return text.replace("\r\n", "\n")
