"""Speech: a text becomes sound."""

import asyncio
from contextlib import aclosing

from omni_jobs.errors import ModelError
from omni_jobs.media.formats import format_of
from workers.runners.remote.call import Call
from workers.runners.remote.client import Answer
from workers.runners.remote.document import Document, read_document
from workers.runners.remote.documents import Documents
from workers.runners.remote.failures import bad_answer, broken_off
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.wav import decode_wav
from workers.stages.types import EncodedOutput, OmniModelRunnerOutput, Progress

_FOUND_AS = {"opus": ("ogg",), "aac": ("aac", "mp3")}  # AAC's sync word with a layer is an MP3's
_NO_HEADER = "pcm"
_EVENTS, _JSON, _HTML = "text/event-stream", "application/json", "text/html"
_PLACES = (
    *(("audio",), ("audio", "data"), ("data",), ("data", 0, "b64_json")),
    *(("audio_base64",), ("audioContent",), ("audio_content",), ("b64_json",)),
)
_SHOWN = 200  # bytes of an answer that is no sound


async def speech(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return a text as speech, in the job's format; as a waveform, too, for a later stage."""
    wanted = "wav" if prompt.capture else prompt.audio_format or "wav"  # only a WAV is decoded here
    body = call.body(prompt, input=prompt.text, voice=prompt.voice, response_format=wanted)

    async def read(answer: Answer) -> memoryview:
        if answer.content_type == _EVENTS:
            return await _streamed(answer, call)
        data = await receive(answer, call)
        if answer.content_type in (_JSON, _HTML) and format_of("audio", data) is None:
            if (sound := await _sound_within(bytes(data))) is not None:
                return sound
            said = call.client.readable(str(data[:_SHOWN], "utf-8", "replace"))
            raise bad_answer(f"{answer.content_type}, not audio: {said}")
        return data

    data = await call.ask(read, Progress(0, None, "bytes"), "POST", "audio/speech", json=body)
    return await speech_output(data, wanted, prompt)


async def receive(answer: Answer, call: Call) -> memoryview:
    """Return an answer's body, with progress in bytes. Raises the error that a body of JSON tells of."""
    body = bytearray()
    async with aclosing(answer.pieces()) as pieces:
        async for piece in pieces:
            body += piece
            call.progress(Progress(len(body), answer.length, "bytes"))
    if answer.content_type == _JSON or body[:1] == b"{":
        try:
            document = await read_document(body)
        except ModelError:
            document = Document(None)
        call.client.check(document)
    return memoryview(body)


async def _sound_within(body: bytes) -> memoryview | None:
    """Return the sound that a body of JSON holds in base64, where servers are known to put it; None: there is none."""
    try:
        document = await read_document(body)
        for path in _PLACES:
            if isinstance(document.peek(*path), str):
                sound = await document.medium(*path)
                return sound if sound is not None and format_of("audio", sound) is not None else None
    except ModelError:
        pass
    return None


async def _streamed(answer: Answer, call: Call) -> memoryview:
    """Return the sound that a stream of events brings in pieces."""
    documents = Documents(answer, call)
    sound = bytearray()
    has_end = False
    async with aclosing(aiter(documents)) as stream:
        async for document in stream:
            if (piece := await document.medium("audio")) is not None:
                sound += piece
                call.progress(Progress(len(sound), None, "bytes"))
            if (document.word("type") or "").endswith(".done"):
                has_end = True
                answer.finish()
    if not has_end and not documents.ended:
        raise broken_off()
    return memoryview(sound)


async def speech_output(data: memoryview, wanted: str, prompt: RemotePrompt) -> OmniModelRunnerOutput:
    """Return the output of sound in the format ``wanted``. Raises ModelError for bytes that are none of it.

    It is kept encoded if that is the job's format. For a later stage it has the tensor ``waveform``, float32 [S], full
    scale 1, and the value ``sampling_rate`` in Hz.
    """
    if not data:
        raise bad_answer("there are no bytes")
    found = format_of("audio", data)
    if wanted != _NO_HEADER and (found is None or found.name not in _FOUND_AS.get(wanted, (wanted,))):
        raise bad_answer(f"its bytes are no {wanted}")
    output = OmniModelRunnerOutput()
    if wanted == (prompt.audio_format or "wav"):
        output = output._replace(encoded={"audio": EncodedOutput(data, wanted)})
    if prompt.capture:
        samples, rate = await asyncio.to_thread(decode_wav, data)
        output = output._replace(multimodal_outputs={"waveform": samples}, values={"sampling_rate": rate})
    return output
