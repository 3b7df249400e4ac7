"""workers.runners.ar.chat_of_transcripts: transcripts in the places of recordings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import InvalidRequest, PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from omni_jobs.pipelines.stage_config import ModelConfig, StageConfig
from omni_jobs.prompts.renderers import load_renderer
from tests.oracles.causal_lm import CONTEXT
from workers.runners.ar.chat_of_transcripts import ChatOfTranscripts
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput


def audio(number: int) -> dict[str, Any]:
    return {"type": "audio", "media": number}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def heard(text: bytes, values: Mapping[str, Any]) -> Payload:
    tensors = {"text": Tensor.from_numpy(np.frombuffer(text, np.uint8))}
    return Payload(
        manifest=Manifest(kind="text", job_id="job", stage="listen", attempt=1),
        additional_information=AdditionalInformationPayload(tensors=tensors, values=values),
    )


def said(*transcripts: str, order: Sequence[int] = ()) -> Payload:
    """A payload of these transcripts; ``order``: the recordings' numbers, 0, 1, … unless given."""
    places, at = [], 0
    for number, transcript in zip(order or range(len(transcripts)), transcripts, strict=True):
        end = at + len(transcript.encode())
        places.append({"media": number, "begin": at, "end": end})
        at = end + 1
    return heard("\n".join(transcripts).encode(), {"transcripts": places})


class Chat:
    """The processor of a stage of the tiny model, and its renderer."""

    def __init__(self, checkpoint: Path) -> None:
        stage = StageConfig(
            name="think",
            kind="ar",
            model=ModelConfig(family="causal_lm"),
            processor="chat_of_transcript",
            inputs={"listen": "text"},
            produces="text",
        )
        self._processor = ChatOfTranscripts(stage, OmniModelConfig(checkpoint, "causal_lm", None))
        self._renderer = load_renderer("causal_lm", checkpoint)

    def prompt(self, messages: Sequence[Mapping[str, Any]], payload: Payload) -> OmniTokensPrompt:
        made = self._processor(
            StageInput(
                job_id="job",
                request={"messages": messages},
                media=(b"", b""),
                upstream={"listen": payload},
                parameters=ArParameters(max_tokens=5),
                seed=3,
                capture=False,
            )
        )
        assert isinstance(made, OmniTokensPrompt)
        return made

    def tokens_of(self, *contents: str) -> list[int]:
        """The token ids of a conversation of user messages in writing."""
        ids = self._renderer.encode({"messages": [{"role": "user", "content": content} for content in contents]})
        assert ids is not None
        return list(ids)


@pytest.fixture(scope="module")
def chat(tiny_causal_lm: Path) -> Chat:
    return Chat(tiny_causal_lm)


@pytest.mark.parametrize(
    ("messages", "payload", "written"),
    [
        ([user(audio(0))], said("What is rain?"), ["What is rain?"]),
        ([user(audio(0))], heard(b"Whole.", {}), ["Whole."]),
        ([user(text("Answer:"), audio(0), text("Please."))], said("Naïve?"), ["Answer:\nNaïve?\nPlease."]),
        ([user(audio(0), audio(1))], said("One.", "Two."), ["One.\nTwo."]),
        ([user(audio(1)), user(text("and"), audio(0))], said("B.", "A.", order=(1, 0)), ["B.", "and\nA."]),
        ([user(text("a"), text("b"))], said(), ["ab"]),
        ([{"role": "user", "content": "In writing."}, user(audio(0))], said("Spoken."), ["In writing.", "Spoken."]),
    ],
)
def test_transcripts_stand_in_the_places_of_recordings(
    chat: Chat, messages: list[Any], payload: Payload, written: list[str]
) -> None:
    prompt = chat.prompt(messages, payload)
    assert prompt.prompt_token_ids == chat.tokens_of(*written)
    assert (prompt.seed, prompt.parameters.max_tokens) == (3, 5)


def test_a_silent_recording_beside_words_is_called_silent(chat: Chat) -> None:
    prompt = chat.prompt([user(text("What do you hear?"), audio(0))], said(""))
    assert prompt.prompt_token_ids == chat.tokens_of("What do you hear?\n(a recording in which nobody speaks)")


@pytest.mark.parametrize(
    ("messages", "payload", "field"),
    [
        ([user(audio(0))], said(""), "messages.0.content.0"),
        ([user(text("Hi.")), user(text("  "), audio(0), audio(1))], said(" ", ""), "messages.1.content.1"),
    ],
)
def test_a_message_in_which_nothing_is_said_is_an_error(
    chat: Chat, messages: list[Any], payload: Payload, field: str
) -> None:
    with pytest.raises(InvalidRequest, match="nobody speaks") as raised:
        chat.prompt(messages, payload)
    assert raised.value.field == field


def test_a_transcript_that_is_too_long_is_an_error(chat: Chat) -> None:
    with pytest.raises(InvalidRequest, match=f"at most {CONTEXT - 1}") as raised:
        chat.prompt([user(audio(0))], said("x" * CONTEXT))
    assert raised.value.field == "messages"


def test_markup_of_the_template_is_refused(chat: Chat) -> None:
    with pytest.raises(InvalidRequest):
        chat.prompt([user(audio(0), text("<|im_end|>"))], said("Hello."))


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (said("One."), "values.transcripts"),
        (heard(b"One. Two.", {}), "values.transcripts"),
        (heard(b"One.", {"transcripts": [7]}), "values.transcripts.0.media"),
        (heard(b"One.", {"transcripts": [{"media": 0, "begin": 0, "end": 9}]}), "values.transcripts.0"),
        (heard(b"One.", {"transcripts": [{"media": 0, "begin": True, "end": 4}]}), "values.transcripts.0.begin"),
        (heard("é".encode(), {"transcripts": [{"media": 0, "begin": 0, "end": 1}]}), "tensors.text"),
    ],
)
def test_a_payload_that_does_not_fit_the_request_is_refused(chat: Chat, payload: Payload, field: str) -> None:
    with pytest.raises(PayloadCorrupt) as raised:
        chat.prompt([user(audio(0), audio(1))], payload)
    assert raised.value.field == field
