"""The tables of parameters: they are the stock client's, and docs/openai.md shows them."""

import re
import typing
from typing import Any

import pytest
from openai.types import image_edit_params as edit
from openai.types import image_generate_params as generation
from openai.types import video_create_params as video
from openai.types.audio import speech_create_params as speech
from openai.types.audio import transcription_create_params as transcriptions
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.chat.parameters import CHAT_COMPLETIONS
from omni_jobs.openai.images.parameters import IMAGE_EDITS, IMAGE_GENERATIONS
from omni_jobs.openai.parameters import Parameter, ParameterTable, Use
from omni_jobs.openai.responses.parameters import RESPONSES
from omni_jobs.openai.speech.parameters import SPEECH
from omni_jobs.openai.transcriptions.parameters import TRANSCRIPTIONS
from omni_jobs.openai.videos.parameters import VIDEOS
from tests.docs.pages import page

TABLES = (CHAT_COMPLETIONS, RESPONSES, SPEECH, TRANSCRIPTIONS, IMAGE_GENERATIONS, IMAGE_EDITS, VIDEOS)
TYPES = {
    CHAT_COMPLETIONS.route: (chat.CompletionCreateParamsNonStreaming, chat.CompletionCreateParamsStreaming),
    RESPONSES.route: (responses.ResponseCreateParamsNonStreaming, responses.ResponseCreateParamsStreaming),
    SPEECH.route: (speech.SpeechCreateParams,),
    TRANSCRIPTIONS.route: (
        transcriptions.TranscriptionCreateParamsNonStreaming,
        transcriptions.TranscriptionCreateParamsStreaming,
    ),
    IMAGE_GENERATIONS.route: (
        generation.ImageGenerateParamsNonStreaming,
        generation.ImageGenerateParamsStreaming,
    ),
    IMAGE_EDITS.route: (edit.ImageEditParamsNonStreaming, edit.ImageEditParamsStreaming),
    VIDEOS.route: (video.VideoCreateParams,),
}
OTHERS = {"stages", "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos"} | {
    "modalities", "audio", "seed", "negative_prompt", "num_inference_steps", "guidance_scale", "true_cfg_scale",
    "guidance_scale_2", "boundary_ratio", "flow_shift", "fps", "num_frames", "extra_params",
}  # fmt: skip
"""What the tables have beside the stock client's names."""


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.route)
def test_a_table_has_every_parameter_of_the_stock_client(table: ParameterTable) -> None:
    names = [parameter.name for parameter in table.parameters]
    known = {name for kind in TYPES[table.route] for name in typing.get_type_hints(kind)}
    assert len(names) == len(set(names))
    assert set(names) - (OTHERS - known) == known


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.route)
def test_the_page_shows_the_table(table: ParameterTable) -> None:
    text = page("openai.md").partition(f"Parameters of `{table.route}`")[2].partition("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| (taken|ignored|refused) \| (.*) \|$", text, re.MULTILINE)
    assert rows == [(each.name, each.use, each.note) for each in table.parameters]


TABLE = ParameterTable(
    "POST /v1/things",
    (Parameter("a", Use.TAKEN, ""), Parameter("b", Use.IGNORED, ""), Parameter("c", Use.REFUSED, "no use")),
)


def test_a_body_is_sorted_and_null_is_no_value() -> None:
    assert TABLE.sort({"b": 1, "a": 2, "c": None}) == ({"a": 2}, ["b"])
    assert TABLE.sort({"a": None, "b": None}) == ({}, [])


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [({"a": 1, "c": 0}, "c", "not taken: no use"), ({"d": None}, "d", "unknown key")],
)
def test_what_is_refused_is_named(body: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        TABLE.sort(body)
    assert caught.value.field == field
