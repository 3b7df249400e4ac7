"""Images: a text, and pictures to start from, become a picture."""

from collections.abc import Mapping
from contextlib import aclosing
from functools import partial

from omni_jobs.errors import ModelError
from omni_jobs.media.formats import format_of
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.documents import Documents
from workers.runners.remote.failures import bad_answer, broken_off
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.reply import usage_of
from workers.runners.remote.speech import receive
from workers.stages.types import EncodedOutput, OmniModelRunnerOutput, Progress

_FORMATS = ("png", "jpeg", "webp")


async def images(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return a picture, encoded as the server encodes it. Pictures of the job's are edited."""
    refuse_successors(prompt)
    body = call.body(prompt, prompt=prompt.text, n=1, response_format="b64_json", seed=call.seed(prompt))
    files = [("image" if len(prompt.files) == 1 else "image[]", file) for file in prompt.files]

    path, content = (
        ("images/edits", {"form": body, "files": files}) if files else ("images/generations", {"json": body})
    )
    begin = Progress(0, None, "images")
    data, usage = await call.ask(partial(_picture, call=call), begin, "POST", path, **content)
    if isinstance(data, str):
        data = await _linked(data, call, begin)
    found = format_of("image", data)
    if found is None or found.name not in _FORMATS:
        raise bad_answer(f"the picture is none of {', '.join(_FORMATS)}")
    return OmniModelRunnerOutput(encoded={"image": EncodedOutput(data, found.name)}, usage=usage)


async def _linked(url: str, call: Call, begin: Progress) -> memoryview:
    """Return the picture that an answer's URL leads to, on the server itself or, where settings allow it, elsewhere."""
    path = call.client.own_path(url)
    if path is not None:
        return await call.ask(partial(receive, call=call), begin, "GET", path)
    return await call.patience.until_answered(partial(call.client.fetch, url), begin)


async def _picture(answer: Answer, call: Call) -> tuple[memoryview | str, Mapping[str, int] | None]:
    """Return the first picture of an answer, or its URL, and the usage. Of a stream it is the one that is complete.

    Some servers send the picture alone.
    """
    if answer.content_type.startswith("image/"):
        return await receive(answer, call), None
    documents = Documents(answer, call)
    picture: memoryview | str | None = None
    usage: Mapping[str, int] | None = None
    async with aclosing(aiter(documents)) as stream:
        async for document in stream:
            usage = usage_of(document, "usage") or usage
            if picture is None and ".partial" not in (document.word("type") or ""):
                at = () if document.at("data") is None else ("data", 0)
                if document.is_data_url(*at, "url"):
                    picture = await document.medium(*at, "url")
                else:
                    picture = await document.medium(*at, "b64_json") or document.text(*at, "url")
    if picture is not None:
        return picture, usage
    if not documents.ended:
        raise broken_off()
    raise bad_answer("data.0 has neither b64_json nor url")


def refuse_successors(prompt: RemotePrompt) -> None:
    """Raise ModelError if a later stage takes the pictures, because encoded ones are not decoded here."""
    if prompt.capture:
        raise ModelError("remote pictures are not decoded for a later stage: let this stage be the last")
