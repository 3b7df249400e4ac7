"""Transcriptions: recordings become text, with the times of what was said where the server tells them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from omni_jobs.errors import InvalidRequest, ModelError, RequestTooLarge
from workers.runners.growing_text import GrowingText
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.document import MOST_TEXT, Document, read_document
from workers.runners.remote.documents import Documents
from workers.runners.remote.failures import bad_answer
from workers.runners.remote.parameters import TranscriptionParameters
from workers.runners.remote.prompt import RemotePrompt, RemoteRecording
from workers.runners.remote.reply import Reply, usage_of
from workers.runners.remote.verbose_json import heard, tells_segments
from workers.runners.runner import ProgressSink
from workers.stages.types import Artifact, OmniModelRunnerOutput, Progress
from workers.transcripts.subtitles import MEDIA_TYPES, subtitles
from workers.transcripts.transcript import Transcript, joined_text, shown, values_of

_PLAIN = "text/plain"  # of servers that know no other format
_ASKED = ("response_format", "verbose_json", "timestamp")  # what a refusal of the form of an answer names
_TEXT_ALONE = "json"
_RECORDINGS = "messages"  # where a refusal that names none blames the sound

_Said = tuple[Document, Mapping[str, int] | None]
"""What a server answers, and the usage that it counts."""


async def transcriptions(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return what is said in each recording, with the transcripts as a result, and as the subtitles that the job wants.

    The text has a line for each recording. The server is asked for times, and for the text alone when it refuses that.
    Then a transcript has no segments, and the warning ``no_times`` says so.
    """
    parameters = prompt.parameters
    if not isinstance(parameters, TranscriptionParameters):
        raise ModelError(f"a transcription takes no {type(parameters).__name__}")
    transcripts: list[Transcript] = []
    usages: list[Mapping[str, int]] = []
    for number, recording in enumerate(prompt.recordings):
        text = joined_text(transcripts) if number else None
        begin = Progress(number, len(prompt.recordings), "recordings", text)
        try:
            document, usage = await _answered(prompt, recording, parameters, call, begin)
            transcripts.append(await asyncio.to_thread(_transcript, document, recording, parameters))
        except (ModelError, InvalidRequest, RequestTooLarge) as error:
            if error.field in (None, _RECORDINGS):
                error.field = recording.field
            raise
        usages += [usage] if usage is not None else []
    return await asyncio.to_thread(_output, transcripts, _sum(usages), parameters, call.stage)


def _sum(usages: Sequence[Mapping[str, int]]) -> Mapping[str, int] | None:
    names = dict.fromkeys(name for usage in usages for name in usage)
    return {name: sum(usage.get(name, 0) for usage in usages) for name in names} if names else None


async def _answered(
    prompt: RemotePrompt, recording: RemoteRecording, parameters: TranscriptionParameters, call: Call, begin: Progress
) -> _Said:
    """Return what the server answers to the first form of a request that it does not refuse."""

    async def read(answer: Answer) -> _Said:
        if answer.content_type == _PLAIN:
            return await _plain(answer, call)
        return await _read(answer, call, GrowingText(_after(begin, call.progress), None))

    files = [("file", recording.file)]
    refusal: ModelError | InvalidRequest | None = None
    for form in _forms(prompt, parameters, call):
        try:
            said = await call.ask(read, begin, "POST", "audio/transcriptions", form=form, files=files)
        except (ModelError, InvalidRequest) as error:
            if error.field and not _is_of_form(error):
                raise
            refusal = error
        else:
            if refusal is not None and _is_of_form(refusal) and form.get("response_format") == _TEXT_ALONE:
                call.client.tells_times = False
            return said
    try:
        raise refusal or ModelError("the server was not asked")
    finally:
        del refusal  # whose traceback has this frame


def _forms(prompt: RemotePrompt, parameters: TranscriptionParameters, call: Call) -> Iterator[dict[str, Any]]:
    """Yield a request's fields in each form that the server may take, the one that tells most first.

    A ``response_format`` of the stage config's is the only one.
    """
    formats: list[dict[str, Any]] = [{"response_format": _TEXT_ALONE}]
    if call.client.tells_times and "response_format" not in call.engine.extra_body:
        formats.insert(0, {"response_format": "verbose_json"})
        if parameters.words:
            formats.insert(0, {"response_format": "verbose_json", "timestamp_granularities[]": ["segment", "word"]})
    for each in formats:
        body = call.body(prompt, **each)
        yield {name: value for name, value in body.items() if name not in ("words", "subtitles")}


def _is_of_form(error: ModelError | InvalidRequest) -> bool:
    """Return whether a refusal is of the form of the answer, as far as the server says."""
    return any(word in f"{error.field} {error.message}" for word in _ASKED)


def _after(begin: Progress, progress: ProgressSink) -> ProgressSink:
    """Return a sink of one recording's growing text, which reports it behind the text of the recordings before it."""

    def report(each: Progress) -> None:
        text = each.text or ""
        progress(replace(begin, text=text if begin.text is None else f"{begin.text}\n{text}"))

    return report


async def _read(answer: Answer, call: Call, text: GrowingText) -> _Said:
    """Return the document of an answer in JSON, or of a stream of its pieces, whose last event has all of it."""
    documents = Documents(answer, call)
    reply = Reply(text)
    whole: Document | None = None
    async with aclosing(aiter(documents)) as stream:
        async for document in stream:
            reply.say(document.text("delta"))
            reply.usage = usage_of(document, "usage") or reply.usage
            if document.at("text") is not None or tells_segments(document):
                whole = document
                answer.finish()
    output = reply.output(ended=documents.ended or whole is not None)
    if whole is None and not output.text:
        raise bad_answer("text: there is none")
    return whole or Document({"text": output.text}), output.usage


async def _plain(answer: Answer, call: Call) -> _Said:
    body = await answer.body(MOST_TEXT + 1)
    if len(body) > MOST_TEXT:
        raise bad_answer(f"it has more text than {MOST_TEXT} characters")
    if body.lstrip()[:1] == b"{":
        document = await read_document(body)
        call.client.check(document)
        return document, usage_of(document, "usage")
    try:
        return Document({"text": body.decode("utf-8-sig")}), None
    except UnicodeDecodeError as error:
        raise bad_answer(f"not UTF-8: {error.reason}") from None


def _transcript(document: Document, recording: RemoteRecording, parameters: TranscriptionParameters) -> Transcript:
    transcript = heard(document, recording, parameters.language)
    if parameters.words:
        return transcript
    return transcript._replace(segments=[segment._replace(words=()) for segment in transcript.segments])


def _output(
    transcripts: Sequence[Transcript],
    usage: Mapping[str, int] | None,
    parameters: TranscriptionParameters,
    stage: str,
) -> OmniModelRunnerOutput:
    has_times = all(each.segments for each in transcripts if each.text)
    return OmniModelRunnerOutput(
        text=joined_text(transcripts),
        finish_reason="stop",
        usage=usage,
        values={} if any(each.media is None for each in transcripts) else values_of(transcripts),
        result={"transcripts": shown(transcripts)},
        warnings=_warnings(transcripts, parameters),
        artifacts=[
            Artifact(f"{stage}.{each}", MEDIA_TYPES[each], subtitles(transcripts, each), "text")
            for each in (parameters.subtitles if has_times else ())
        ],
    )


def _warnings(transcripts: Sequence[Transcript], parameters: TranscriptionParameters) -> list[dict[str, str]]:
    """Return the warning ``no_times`` if the server told none of what was said; of its words, if the job wants them."""
    spoken = [each for each in transcripts if each.text]
    without = [each for each in spoken if not each.segments]
    if without:
        where = "" if len(without) == len(spoken) else f" in {len(without)} of {len(transcripts)} recordings"
        lacks = " and no subtitles" if parameters.subtitles else ""
        what = f"the server tells no times of what was said{where}, so the transcript has no segments{lacks}"
    elif parameters.words and not all(any(segment.words for segment in each.segments) for each in spoken):
        what = "the server tells no times of single words"
    else:
        return []
    return [{"code": "no_times", "message": what}]
