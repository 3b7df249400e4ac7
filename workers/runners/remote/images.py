"""Images: a text, and pictures to start from, become a picture."""

from omni_jobs.errors import ModelError
from workers.runners.remote.answers import Images, parse_answer
from workers.runners.remote.call import Call, text_of
from workers.runners.remote.chat import decode_base64
from workers.runners.remote.failures import bad_answer
from workers.runners.remote.media_type import media_format
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.speech import receive
from workers.stages.types import EncodedOutput, OmniModelRunnerOutput, Progress

_FORMATS = ("png", "jpeg", "webp")


async def images(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return a picture, encoded as the server encodes it. Pictures of the job's are edited."""
    refuse_successors(prompt)
    body = call.body(prompt, prompt=text_of(prompt), n=1, response_format="b64_json", seed=call.seed(prompt))
    files = [("image" if len(prompt.files) == 1 else "image[]", file) for file in prompt.files]

    async def exchange() -> Images:
        edit = call.client.exchange("POST", "images/edits", form=body, files=files)
        make = call.client.exchange("POST", "images/generations", json=body)
        async with edit if files else make as answer:
            return parse_answer(Images, await answer.body())

    begin = Progress(0, None, "images")
    answer = await call.until_answered(exchange, begin)
    image = answer.data[0]
    if image.b64_json is not None:
        data = decode_base64(image.b64_json, "data.0.b64_json")
    elif image.url is not None:
        data = await _fetch(call, image.url, begin)
    else:
        raise bad_answer("data.0 has neither b64_json nor url")
    found = media_format("image", data)
    if found not in _FORMATS:
        raise bad_answer(f"the picture is none of {', '.join(_FORMATS)}")
    return OmniModelRunnerOutput(
        encoded={"image": EncodedOutput(data, found)}, usage=answer.usage.counts() if answer.usage else None
    )


async def _fetch(call: Call, url: str, begin: Progress) -> bytes:
    path = call.client.own_path(url)

    async def exchange() -> bytes:
        async with call.client.exchange("GET", path) as answer:
            return await receive(answer, call)

    return await call.until_answered(exchange, begin)


def refuse_successors(prompt: RemotePrompt) -> None:
    """Raise ModelError if a later stage takes the pictures, because encoded ones are not decoded here."""
    if prompt.capture:
        raise ModelError("remote pictures are not decoded for a later stage: let this stage be the last")
