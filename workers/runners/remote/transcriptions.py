"""Transcriptions: sound becomes text."""

from omni_jobs.errors import ModelError
from workers.runners.remote.answers import Transcription, parse_answer
from workers.runners.remote.call import Call
from workers.runners.remote.prompt import RemotePrompt
from workers.stages.types import OmniModelRunnerOutput, Progress


async def transcriptions(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return what is said in a sound."""
    if not prompt.files:
        raise ModelError("there is no sound to transcribe", field="messages")
    form = call.body(prompt, response_format="json")

    async def exchange() -> Transcription:
        files = [("file", prompt.files[0])]
        async with call.client.exchange("POST", "audio/transcriptions", form=form, files=files) as answer:
            return parse_answer(Transcription, await answer.body())

    said = await call.until_answered(exchange, Progress(0, None, "bytes"))
    return OmniModelRunnerOutput(
        text=said.text, finish_reason="stop", usage=said.usage.counts() if said.usage else None
    )
