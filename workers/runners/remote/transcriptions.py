"""Transcriptions: sound becomes text."""

from contextlib import aclosing

from omni_jobs.errors import ModelError
from workers.runners.growing_text import GrowingText
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.document import MOST_TEXT, Document, read_document
from workers.runners.remote.documents import Documents
from workers.runners.remote.failures import bad_answer
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.reply import Reply, usage_of
from workers.runners.remote.server_error import raise_error
from workers.stages.types import OmniModelRunnerOutput, Progress

_PLAIN = "text/plain"  # of servers that know no other format


async def transcriptions(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return what is said in a sound."""
    if not prompt.files:
        raise ModelError("there is no sound to transcribe", field="messages")
    form = call.body(prompt, response_format="json")

    async def exchange() -> OmniModelRunnerOutput:
        files = [("file", prompt.files[0])]
        async with call.client.exchange("POST", "audio/transcriptions", form=form, files=files) as answer:
            return await (_plain if answer.content_type == _PLAIN else _read)(answer, call)

    return await call.until_answered(exchange, Progress(0, None, "bytes"))


async def _read(answer: Answer, call: Call) -> OmniModelRunnerOutput:
    """Return the text of an answer in JSON, or of a stream of its pieces, whose last event has all of it."""
    documents = Documents(answer, call)
    reply = Reply(GrowingText(call.progress, None))
    whole: Document | None = None
    async with aclosing(aiter(documents)) as stream:
        async for document in stream:
            reply.say(document.text("delta"))
            reply.usage = usage_of(document, "usage") or reply.usage
            if document.at("text") is not None:
                whole = document
                answer.finish()
    output = reply.output(ended=documents.ended or whole is not None)
    if whole is not None:
        return output._replace(text=whole.text("text"))
    if not output.text:
        raise bad_answer("text: there is none")
    return output


async def _plain(answer: Answer, call: Call) -> OmniModelRunnerOutput:
    body = await answer.body(MOST_TEXT + 1)
    if len(body) > MOST_TEXT:
        raise bad_answer(f"it has more text than {MOST_TEXT} characters")
    if body.lstrip()[:1] == b"{":
        document = await read_document(body)
        raise_error(document, call.client)
        text = document.text("text")
        if text is None:
            raise bad_answer("text: there is none")
    else:
        try:
            text = body.decode()
        except UnicodeDecodeError as error:
            raise bad_answer(f"not UTF-8: {error.reason}") from None
    return OmniModelRunnerOutput(text=text.strip(), finish_reason="stop")
