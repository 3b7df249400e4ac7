"""Speech: a text becomes sound."""

import io
import wave
from contextlib import aclosing

import numpy as np

from workers.runners.remote.call import Call, text_of
from workers.runners.remote.client import Answer
from workers.runners.remote.failures import bad_answer
from workers.runners.remote.media_type import media_format
from workers.runners.remote.prompt import RemotePrompt
from workers.stages.types import EncodedOutput, OmniModelRunnerOutput, Progress

_FOUND_AS = {"opus": ("ogg",), "aac": ("aac", "mp3")}  # AAC's sync word with a layer is an MP3's
_NO_HEADER = "pcm"
_SAMPLE_BYTES = 2


async def speech(prompt: RemotePrompt, call: Call) -> OmniModelRunnerOutput:
    """Return a text as speech, in the job's format; as a waveform, too, for a later stage."""
    wanted = "wav" if prompt.capture else prompt.audio_format or "wav"  # only a WAV is decoded here
    body = call.body(prompt, input=text_of(prompt), voice=prompt.voice, response_format=wanted)

    async def exchange() -> bytes:
        async with call.client.exchange("POST", "audio/speech", json=body) as answer:
            if answer.content_type in ("application/json", "text/html", "text/event-stream"):
                raise bad_answer(f"{answer.content_type}, not audio")
            return await receive(answer, call)

    data = await call.until_answered(exchange, Progress(0, None, "bytes"))
    return speech_output(data, wanted, prompt)


async def receive(answer: Answer, call: Call) -> bytes:
    """Return an answer's body, with progress in bytes."""
    body = bytearray()
    async with aclosing(answer.pieces()) as pieces:
        async for piece in pieces:
            body += piece
            call.progress(Progress(len(body), answer.length, "bytes"))
    return bytes(body)


def speech_output(data: bytes, wanted: str, prompt: RemotePrompt) -> OmniModelRunnerOutput:
    """Return the output of sound in the format ``wanted``. Raises ModelError for bytes that are none of it.

    It is kept encoded if that is the job's format. For a later stage it has the tensor ``waveform``, float32 [S], full
    scale 1, and the value ``sampling_rate`` in Hz.
    """
    if not data:
        raise bad_answer("there are no bytes")
    if wanted != _NO_HEADER and media_format("audio", data) not in _FOUND_AS.get(wanted, (wanted,)):
        raise bad_answer(f"its bytes are no {wanted}")
    output = OmniModelRunnerOutput()
    if wanted == (prompt.audio_format or "wav"):
        output = output._replace(encoded={"audio": EncodedOutput(data, wanted)})
    if prompt.capture:
        samples, rate = _decode_wav(data)
        output = output._replace(multimodal_outputs={"waveform": samples}, values={"sampling_rate": rate})
    return output


def _decode_wav(data: bytes) -> tuple["np.ndarray[tuple[int], np.dtype[np.float32]]", int]:
    """Return the samples of a WAV of 16 bits, the mean of its channels, and its rate. Raises ModelError for others."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise bad_answer(f"the WAV does not decode: {error}") from None
    if width != _SAMPLE_BYTES or not channels or not 4_000 <= rate <= 384_000:
        raise bad_answer(f"a WAV of {8 * width} bits, {channels} channels and {rate} Hz, where 16 bits are due")
    whole = len(frames) - len(frames) % (_SAMPLE_BYTES * channels)
    samples = np.frombuffer(frames[:whole], "<i2").reshape(-1, channels)
    if not len(samples):
        raise bad_answer("the WAV has no samples")
    return (samples.astype(np.float32).mean(axis=1) / np.float32(32768)).astype(np.float32), rate
