"""``ChatOfTranscripts``: a conversation with recordings, and what was heard in them, become an AR stage's prompt."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omni_jobs.errors import InvalidRequest, PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.renderers import load_renderer
from workers.runners.ar.chat_processor import ChatProcessor
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.flow_processor import FlowProcessor
from workers.stages.types import StageInput

_SILENCE = "(a recording in which nobody speaks)"


class ChatOfTranscripts(FlowProcessor):
    """Puts transcripts into the places of a job's recordings, then does as ``chat`` does.

    A recording in which nobody speaks is called that, in a message that says something besides. A message that says
    nothing else is an error, because a model would answer a question that nobody asked. Its name in a stage config is
    ``chat_of_transcript``.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Load the prompt renderer of the checkpoint. Raises ConfigError when there is no model or renderer."""
        super().__init__(stage, model)
        model = needed_model(model, stage)
        self._stage = stage
        self._chat = ChatProcessor(stage, model)
        self._renderer = load_renderer(model.family, model.path)

    def __call__(self, stage_input: StageInput[ArParameters]) -> OmniTextPrompt | OmniTokensPrompt:
        """Return the prompt of ``chat`` for the job's messages with the payload's transcripts in them.

        The payload has a tensor ``text`` U8 [bytes] and, unless it is the transcript of the only recording, a value
        ``transcripts``: [{"media", "begin", "end"} …], the bytes of each recording's transcript. Raises PayloadCorrupt
        naming the field of it that is missing or wrong, InvalidRequest naming the message in which nothing is said or
        ``messages`` if the prompt is too long for the model, and what ``ChatProcessor`` raises.
        """
        messages = stage_input.request["messages"]
        recordings = [part["media"] for message in messages for part in _parts(message) if part["type"] == "audio"]
        heard = _transcripts(self.information(stage_input, "text"), recordings)
        written = [_written(message, number, heard) for number, message in enumerate(messages)]
        request = {**stage_input.request, "messages": written}
        self._check(request)
        return self._chat(stage_input._replace(request=request))

    def _check(self, request: Mapping[str, Any]) -> None:
        """Check what admission cannot, because it does not know the transcripts."""
        self._renderer.check(request)
        if any(part["type"] != "text" for message in request["messages"] for part in _parts(message)):
            return  # only the engine can count the tokens of media that nobody has measured
        tokens = self._renderer.count_tokens(request, ())
        limit = self._renderer.prompt_limit([self._stage])
        if tokens > limit:
            raise InvalidRequest(
                f"with what was said, the prompt has {tokens} tokens; the model takes at most {limit}", field="messages"
            )


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message["content"]
    return ({"type": "text", "text": content},) if isinstance(content, str) else content


def _transcripts(information: AdditionalInformationPayload, recordings: Sequence[int]) -> Mapping[int, str]:
    """Return the transcript of each recording by its number. Raises PayloadCorrupt if one is missing."""
    text = bytes(information.tensor("text", dtypes=frozenset({"U8"}), rank=1).data)
    if "transcripts" not in information.values and len(recordings) == 1:
        return {recordings[0]: _decoded(text)}
    heard = dict(_pieces(text, information.value("transcripts", list)))
    for number in recordings:
        if number not in heard:
            raise PayloadCorrupt(f"the recording with the number {number} is missing", field="values.transcripts")
    return heard


def _pieces(text: bytes, transcripts: Sequence[Any]) -> Iterator[tuple[int, str]]:
    for place, one in enumerate(transcripts):
        media, begin, end = (_integer(one, name, place) for name in ("media", "begin", "end"))
        if not 0 <= begin <= end <= len(text):
            raise PayloadCorrupt(
                f"bytes {begin} to {end} of a text of {len(text)}", field=f"values.transcripts.{place}"
            )
        yield media, _decoded(text[begin:end])


def _integer(transcript: Any, name: str, place: int) -> int:
    value = transcript.get(name) if isinstance(transcript, dict) else None
    if type(value) is not int:
        raise PayloadCorrupt("not an integer", field=f"values.transcripts.{place}.{name}")
    return value


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise PayloadCorrupt(f"not UTF-8: {error.reason}", field="tensors.text") from None


def _written(message: Mapping[str, Any], number: int, heard: Mapping[int, str]) -> dict[str, Any]:
    """Return a message with its recordings written out, each on lines of its own."""
    parts: list[dict[str, Any]] = []
    silent: str | None = None  # the field of a recording in which nobody speaks
    says_something = after_recording = False
    for place, part in enumerate(_parts(message)):
        if part["type"] not in ("text", "audio"):
            parts.append(dict(part))
            says_something = True
            after_recording = False
            continue
        is_recording = part["type"] == "audio"
        text = heard[part["media"]] if is_recording else part["text"]
        says_something = says_something or bool(text.strip())
        if is_recording and not text.strip():
            silent = silent or f"messages.{number}.content.{place}"
            text = _SILENCE
        if parts and parts[-1]["type"] == "text" and (is_recording or after_recording):
            parts[-1]["text"] += f"\n{text}"
        else:
            parts.append({"type": "text", "text": text})
        after_recording = is_recording
    if silent is not None and not says_something:
        raise InvalidRequest("nobody speaks in this recording", field=silent)
    only = parts[0] if len(parts) == 1 else None
    return {**message, "content": only["text"] if only is not None and only["type"] == "text" else parts}
