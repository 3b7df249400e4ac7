"""``asked_transcription``: the form of a transcription, as the job that it asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omni_jobs.errors import InvalidRequest
from omni_jobs.http.form_reader import Form
from omni_jobs.openai.asked import flag, one_of, pipeline_of, with_parameters
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.client_names import in_client_names, names_of
from omni_jobs.openai.form_body import TakenForm, body_of
from omni_jobs.openai.transcriptions.parameters import TRANSCRIPTIONS
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.requests import JobRequest

_NAME_OF = names_of(
    {
        "messages*": "file",
        "modalities*": "model",
        "logprobs": "include",
        "words": "timestamp_granularities",
        "subtitles": "response_format",
        "stages.*.words": "timestamp_granularities",
        "stages.*.subtitles": "response_format",
        "stages.*.language": "language",
        "stages.*.prompt": "prompt",
    }
)
_FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
_GRANULARITIES = ("segment", "word")
_LISTS = {"timestamp_granularities": _GRANULARITIES, "include": ("logprobs",)}
_TYPED = frozenset({"temperature", "seed", "stream"})
_OBJECTS = {"stages": 2}
_UNREAD = "chunking_strategy"  # a word, or an object in parts, and ignored


@dataclass(frozen=True, slots=True)
class WantedTranscription:
    """How a transcription is to be answered.

    stage          the stage that makes the text
    format         the form of the answer: json, text, srt, vtt, verbose_json
    granularities  of times: segment, word
    with_logprobs  whether the logprobs of the text's tokens are told
    stream         whether the text is streamed
    """

    stage: str
    format: str
    granularities: Sequence[str]
    with_logprobs: bool
    stream: bool


def asked_transcription(body: Mapping[str, Any], pipelines: Pipelines) -> AskedJobs[WantedTranscription]:
    """Return the job that a ``TRANSCRIPTION_FORM`` asks for.

    Raises InvalidRequest naming the field, NotFound for an unknown model, and PluginBroken.
    """
    taken, ignored = TRANSCRIPTIONS.sort(body)
    pipeline = pipeline_of(taken, pipelines, takes="audio", makes="text")
    stage = pipeline.stage(pipeline.outputs["text"].stage)
    if "text" in stage.inputs.values():
        raise InvalidRequest(f"pipeline {pipeline.name} answers what it hears, and does not tell it", field="model")
    if "file" not in taken:
        raise InvalidRequest("is required", field="file")
    [file] = taken["file"]
    if not file.data:
        raise InvalidRequest("is empty", field="file")
    answer = _answer(taken, stage)
    sound = {"type": "input_audio", "input_audio": {"data": file}}
    asked = {
        "model": pipeline.name,
        "messages": [{"role": "user", "content": [sound]}],
        "modalities": ["text"],
        "temperature": taken.get("temperature"),
        "seed": taken.get("seed"),
        "logprobs": True if answer.with_logprobs else None,
        "stages": with_parameters(taken.get("stages"), stage.name, _parameters(taken, answer, stage, pipeline)),
    }
    with in_client_names(_NAME_OF):
        return AskedJobs([JobRequest.parse(asked)], answer, ("stream",), ignored, _NAME_OF)


def _fields_of(form: Form) -> dict[str, Any]:
    """Return the parameters by name as JSON would have them, and the file as a list of one Upload.

    An empty field is no value.
    """
    if "file" in form.texts:
        raise InvalidRequest("must be a file: a part with a file name", field="file")
    apart = {name for name in form.texts if name in _LISTS or name.startswith(_UNREAD)}
    others = {name: texts for name, texts in form.texts.items() if name not in apart and texts != [""]}
    fields = body_of(Form(others, form.files), _TYPED, _OBJECTS)
    for name in apart:
        fields[name if name in _LISTS else _UNREAD] = form.texts[name]
    for name, files in form.files.items():
        if len(files) > 1:
            raise InvalidRequest("this part is given twice", field=f"{name:.64}")
        if name != "file" and name in {parameter.name for parameter in TRANSCRIPTIONS.parameters}:
            raise InvalidRequest("must be a field of text, not a file", field=name)
    return fields


TRANSCRIPTION_FORM: Final = TakenForm(_fields_of, most_files=2)


def _answer(taken: Mapping[str, Any], stage: StageConfig) -> WantedTranscription:
    """Return how the transcription is to be answered. Raises InvalidRequest for what does not fit together."""
    format = one_of(taken, "response_format", _FORMATS)
    for name, known in _LISTS.items():
        for value in taken.get(name, ()):
            if value not in known:
                raise InvalidRequest(f"takes {', '.join(known)}", field=name)
    if "timestamp_granularities" in taken and format != "verbose_json":
        raise InvalidRequest("given, and response_format is not verbose_json", field="timestamp_granularities")
    stream = flag(taken, "stream")
    if stream and format != "json":
        raise InvalidRequest("a stream is of the format json", field="response_format")
    if "include" in taken and format != "json":
        raise InvalidRequest("logprobs come with the response_format json", field="include")
    if "include" in taken and not stage.has_parameter("logprobs"):
        raise InvalidRequest(f"the stage {stage.name} does not tell logprobs", field="include")
    granularities = tuple(taken.get("timestamp_granularities", _GRANULARITIES[:1]))
    return WantedTranscription(stage.name, format, granularities, "include" in taken, stream)


def _parameters(
    taken: Mapping[str, Any], answer: WantedTranscription, stage: StageConfig, pipeline: Pipeline
) -> dict[str, Any]:
    """Return the parameters of the stage that makes the text. Raises InvalidRequest where it has none of a name."""
    named: dict[str, Any] = {name: taken[name] for name in ("language", "prompt") if name in taken}
    needed = dict.fromkeys(named)
    if answer.format in ("srt", "vtt"):
        named["subtitles"] = [answer.format]
        needed["subtitles"] = None
    if answer.format == "verbose_json":
        needed["words"] = None
        named |= {"words": True} if "word" in answer.granularities else {}
    for name in needed:
        if not stage.has_parameter(name):
            field = "response_format" if name in ("words", "subtitles") else name
            raise InvalidRequest(f"the stage {stage.name} of pipeline {pipeline.name} does not take it", field=field)
    return named
