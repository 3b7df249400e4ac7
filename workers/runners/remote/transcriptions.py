"""Transcriptions: sound becomes text, with the times of what was said where the server tells them."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import Any

from omni_jobs.errors import InvalidRequest, ModelError
from workers.runners.growing_text import GrowingText
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.document import MOST_TEXT, Document, read_document
from workers.runners.remote.documents import Documents
from workers.runners.remote.failures import bad_answer
from workers.runners.remote.heard import heard, tells_segments
from workers.runners.remote.parameters import TranscriptionParameters
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.reply import Reply, usage_of
from workers.runners.remote.server_error import raise_error
from workers.stages.types import Artifact, OmniModelRunnerOutput, Progress
from workers.transcripts.subtitles import MEDIA_TYPES, subtitles
from workers.transcripts.transcript import Transcript, shown, values_of

_PLAIN = "text/plain"  # of servers that know no other format
_ASKED = ("response_format", "verbose_json", "timestamp")  # what a refusal of the form of an answer names
_TEXT_ALONE = "json"

_Said = tuple[Document, Mapping[str, int] | None]
"""What a server answers, and the usage that it counts."""


async def transcriptions(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return what is said in a sound, with its transcript as a result, and as the subtitles that the job wants.

    The server is asked for times, and for the text alone when it refuses that. Then the transcript has no segments, and
    the warning ``no_times`` says so.
    """
    parameters = prompt.parameters
    if not isinstance(parameters, TranscriptionParameters):
        raise ModelError(f"a transcription takes no {type(parameters).__name__}")
    if not prompt.files:
        raise ModelError("there is no sound to transcribe", field="messages")
    document, usage = await _answered(prompt, parameters, call)
    return await asyncio.to_thread(_output, document, usage, prompt, parameters, call.stage)


async def _answered(prompt: RemotePrompt, parameters: TranscriptionParameters, call: Call) -> _Said:
    """Return what the server answers to the first form of a request that it does not refuse."""
    refusal: ModelError | InvalidRequest | None = None
    for form in _forms(prompt, parameters, call):

        async def exchange(form: Mapping[str, Any] = form) -> _Said:
            files = [("file", prompt.files[0])]
            async with call.client.exchange("POST", "audio/transcriptions", form=form, files=files) as answer:
                return await (_plain if answer.content_type == _PLAIN else _read)(answer, call)

        try:
            said = await call.until_answered(exchange, Progress(0, None, "bytes"))
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


async def _read(answer: Answer, call: Call) -> _Said:
    """Return the document of an answer in JSON, or of a stream of its pieces, whose last event has all of it."""
    documents = Documents(answer, call)
    reply = Reply(GrowingText(call.progress, None))
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
        raise_error(document, call.client)
        return document, usage_of(document, "usage")
    try:
        return Document({"text": body.decode("utf-8-sig")}), None
    except UnicodeDecodeError as error:
        raise bad_answer(f"not UTF-8: {error.reason}") from None


def _output(
    document: Document,
    usage: Mapping[str, int] | None,
    prompt: RemotePrompt,
    parameters: TranscriptionParameters,
    stage: str,
) -> OmniModelRunnerOutput:
    transcript = heard(document, prompt)
    if not parameters.words:
        transcript = transcript._replace(segments=[segment._replace(words=()) for segment in transcript.segments])
    files = parameters.subtitles if transcript.segments or not transcript.text else ()
    return OmniModelRunnerOutput(
        text=transcript.text,
        finish_reason="stop",
        usage=usage,
        values={} if transcript.media is None else values_of([transcript]),
        result={"transcripts": shown([transcript])},
        warnings=_warnings(transcript, parameters),
        artifacts=[
            Artifact(f"{stage}.{each}", MEDIA_TYPES[each], subtitles([transcript], each), "text") for each in files
        ],
    )


def _warnings(transcript: Transcript, parameters: TranscriptionParameters) -> list[dict[str, str]]:
    """Return the warning ``no_times`` if the server told none of what was said; of its words, if the job wants them."""
    if not transcript.text:
        return []
    if not transcript.segments:
        lacks = " and no subtitles" if parameters.subtitles else ""
        what = f"the server tells no times of what was said, so the transcript has no segments{lacks}"
    elif parameters.words and not any(segment.words for segment in transcript.segments):
        what = "the server tells no times of single words"
    else:
        return []
    return [{"code": "no_times", "message": what}]
