"""Transcripts of remote servers: segments, words, language and subtitles, in the forms that real servers write."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest, ModelError, RemoteUnavailable, RequestTooLarge
from tests.remote_stages import Recorded, prompt, recording, remote_runner
from tests.services.openai_server import (
    Answer,
    Connection,
    OpenAIServer,
    Reply,
    Request,
    Stream,
    error_answer,
    json_answer,
)
from workers.runners.remote.prompt import RemoteRecording
from workers.stages.types import OmniModelRunnerOutput

ROUTE = "POST /v1/audio/transcriptions"
TEXT = "The baker gets up. He bakes."
TIMES = [(0.0, 1.5, "The baker gets up."), (1.5, 2.75, "He bakes.")]
SRT = "1\n00:00:00,000 --> 00:00:01,500\nThe baker gets up.\n\n2\n00:00:01,500 --> 00:00:02,750\nHe bakes.\n\n"


async def ask(
    server: OpenAIServer, *answers: Reply, parameters: Mapping[str, Any] | None = None, **settings: Any
) -> OmniModelRunnerOutput:
    server.answers[ROUTE] = list(answers)
    async with remote_runner(server.url, "transcriptions", **settings) as runner:
        return await runner.run(asked(parameters), Recorded())


def asked(parameters: Mapping[str, Any] | None = None) -> Any:
    return prompt("transcriptions", recordings=[recording(3)], parameters=parameters or {})


def segments(*more: Mapping[str, Any], space: str = "", **each: Any) -> list[dict[str, Any]]:
    found = [{"id": n, "start": a, "end": b, "text": space + text, **each} for n, (a, b, text) in enumerate(TIMES)]
    return [{**segment, **extra} for segment, extra in zip(found, more or [{}, {}], strict=True)]


def times(output: OmniModelRunnerOutput) -> list[tuple[float, float, str]]:
    (transcript,) = output.result["transcripts"]
    return [(each["start_s"], each["end_s"], each["text"]) for each in transcript["segments"]]


def forms(server: OpenAIServer) -> list[str]:
    return [request.form["response_format"][2].decode() for request in server.requests if request.method == "POST"]


MEASURED = {"avg_logprob": -0.25, "compression_ratio": 1.1, "no_speech_prob": 0.01, "temperature": 0.0, "seek": 0}
TOLD: dict[str, Any] = {
    "OpenAI": {
        "task": "transcribe",
        "language": "english",
        "duration": 2.9,
        "text": TEXT,
        "segments": segments(space=" ", tokens=[50364, 440], **MEASURED),
        "usage": {"type": "duration", "seconds": 3},
    },
    "OpenAI, of old": {"language": "english", "duration": "2.9", "text": TEXT, "segments": segments(**MEASURED)},
    "Groq": {
        "language": "English",
        "duration": 2.9,
        "text": f" {TEXT}",
        "segments": segments(space=" ", tokens=[], **MEASURED),
        "x_groq": {"id": "req_1"},
    },
    "whisper.cpp": {
        "task": "transcribe",
        "language": "english",
        "duration": 2.9,
        "text": " The baker gets up.\n He bakes.\n",
        "segments": segments(space=" ", words=[{"word": " The", "start": 0, "end": 0.2, "t_dtw": -1}], **MEASURED),
        "detected_language": "english",
        "language_probabilities": {"en": 0.99},
    },
    "speaches": {
        "language": "en",
        "duration": 2.9,
        "text": TEXT,
        "words": None,
        "segments": segments(words=None, **MEASURED),
    },
    "vLLM": {
        "language": "en",
        "duration": "2.9",
        "text": TEXT,
        "segments": segments(space=" ", avg_logprob=None, compression_ratio=None, no_speech_prob=None, tokens=[1]),
        "words": None,
    },
    "numbers as strings": {
        "language": "<|en|>",
        "duration": "2.9s",
        "text": TEXT,
        "segments": segments({"start": "0", "end": "1.5"}, {"start": "1.50", "end": "00:00:02,750"}),
    },
    "chunks": {
        "language": "en-US",
        "duration": 2.9,
        "chunks": [{"timestamp": [a, b], "text": f" {text}"} for a, b, text in TIMES],
    },
    "a longer text beside": {"language": "en", "duration": 2.9, "text": f"{TEXT}\n", "segments": segments(seek="x")},
}


@pytest.mark.parametrize("server", TOLD)
async def test_the_times_are_told_as_each_server_writes_them(openai_server: OpenAIServer, server: str) -> None:
    output = await ask(openai_server, json_answer(TOLD[server]), parameters={"subtitles": ["srt", "vtt"]})
    (transcript,) = output.result["transcripts"]
    assert times(output) == TIMES
    assert transcript["text"] == output.text
    assert " ".join(transcript["text"].split()) == TEXT
    assert (transcript["media"], transcript["language"], transcript["duration_s"]) == (3, "en", 2.9)
    assert all("words" not in segment for segment in transcript["segments"])
    assert not output.warnings
    assert forms(openai_server) == ["verbose_json"]
    srt, vtt = output.artifacts
    assert (srt.name, srt.media_type, bytes(srt.data).decode()) == ("llm.srt", "application/x-subrip", SRT)
    assert (vtt.name, bytes(vtt.data)[:6]) == ("llm.vtt", b"WEBVTT")
    (value,) = output.values["transcripts"]
    assert output.text.encode()[value["begin"] : value["end"]].decode() == output.text
    assert value["media"] == 3


async def test_what_the_model_measured_is_kept(openai_server: OpenAIServer) -> None:
    output = await ask(openai_server, json_answer({"text": TEXT, "segments": segments({"avg_logprob": "-0.5"}, {})}))
    (transcript,) = output.result["transcripts"]
    first, second = transcript["segments"]
    assert first["avg_logprob"] == -0.5
    assert {"avg_logprob", "no_speech_prob"}.isdisjoint(second)
    assert (transcript["language"], transcript["duration_s"]) == (None, 2.75)


# Words.

WORDS = [("The", 0.0, 0.2), ("baker", 0.2, 0.7), ("gets", 0.7, 1.0), ("up", 1.0, 1.45), ("He", 1.5, 1.8)]
WORDS.append(("bakes", 1.8, 2.7))
BESIDE = [{"word": word, "start": begin, "end": end} for word, begin, end in WORDS]


@pytest.mark.parametrize(
    "answer",
    [
        {"text": TEXT, "segments": segments(), "words": BESIDE},
        {"text": TEXT, "segments": segments({"words": BESIDE[:4]}, {"words": BESIDE[4:]})},
        {"text": TEXT, "segments": segments({"words": BESIDE[:4]}, {"words": BESIDE[4:]}), "words": BESIDE},
        {"text": TEXT, "segments": segments(), "words": [{**each, "start": str(each["start"])} for each in BESIDE]},
    ],
)
async def test_words_stand_in_their_segments(openai_server: OpenAIServer, answer: Any) -> None:
    output = await ask(openai_server, json_answer(answer), parameters={"words": True})
    first, second = output.result["transcripts"][0]["segments"]
    assert [word["text"] for word in first["words"]] == ["The", "baker", "gets", "up"]
    assert second["words"][1] == {"start_s": 1.8, "end_s": 2.7, "text": "bakes"}
    assert not output.warnings
    body = openai_server.requests[-1].body
    assert body.count(b'name="timestamp_granularities[]"') == 2
    assert b'name="words"' not in body


@pytest.mark.parametrize("words", [None, [], 7, [{"word": "The"}], [{"word": "The", "start": None, "end": 1}]])
async def test_words_without_times_are_told_to_be_missing(openai_server: OpenAIServer, words: Any) -> None:
    answer = json_answer({"text": TEXT, "segments": segments(), "words": words})
    output = await ask(openai_server, answer, parameters={"words": True})
    assert times(output) == TIMES
    assert [(each["code"], each["message"]) for each in output.warnings] == [
        ("no_times", "the server tells no times of single words")
    ]


# Several recordings.


def bakers() -> list[Reply]:
    """What a server tells of three recordings, in the second of which nobody speaks."""
    told = [{**TOLD["OpenAI"], "language": "english"}, {"text": "", "segments": []}, TOLD["chunks"]]
    return [json_answer({**each, "usage": {"input_tokens": 10, "output_tokens": 2}}) for each in told]


async def listened(
    server: OpenAIServer, answers: list[Reply], recordings: list[RemoteRecording], **parameters: Any
) -> tuple[OmniModelRunnerOutput, Recorded]:
    server.answers[ROUTE] = answers
    seen = Recorded()
    async with remote_runner(server.url, "transcriptions", wait_s=5) as runner:
        asked = prompt("transcriptions", recordings=recordings, parameters=parameters)
        return await runner.run(asked, seen), seen


async def test_each_recording_is_heard_in_its_turn(openai_server: OpenAIServer) -> None:
    recordings = [recording(n, b"RIFF%d" % n, duration_s=s) for n, s in ((1, 2.9), (2, 4.0), (4, 3.0))]
    output, seen = await listened(openai_server, bakers(), recordings, subtitles=["srt", "vtt"])
    sent = [request.form["file"][2] for request in openai_server.requests if request.method == "POST"]
    assert sent == [b"RIFF1", b"RIFF2", b"RIFF4"]
    assert output.text == f"{TEXT}\n\n{TEXT}"
    shown = output.result["transcripts"]
    assert [(each["media"], each["text"], each["duration_s"]) for each in shown] == [
        (1, TEXT, 2.9),
        (2, "", 4.0),
        (4, TEXT, 3.0),
    ]
    assert [(each["begin"], each["end"]) for each in output.values["transcripts"]] == [(0, 28), (29, 29), (30, 58)]
    assert output.usage == {"prompt_tokens": 30, "completion_tokens": 6}
    assert not output.warnings
    srt, vtt = (bytes(each.data).decode() for each in output.artifacts)
    assert srt.startswith(SRT)
    assert "3\n00:00:06,900 --> 00:00:08,400\nThe baker gets up." in srt  # behind 2.9 s and 4 s
    assert "00:00:08.400 --> 00:00:09.650\nHe bakes." in vtt
    assert [(each.done, each.total, each.unit, each.text) for each in seen] == [
        (0, 3, "recordings", None),
        (1, 3, "recordings", TEXT),
        (2, 3, "recordings", f"{TEXT}\n"),
    ]


async def test_a_growing_text_stands_behind_those_before_it(openai_server: OpenAIServer) -> None:
    told = Stream([{"delta": "Good "}, {"delta": "night."}, b"[DONE]"])
    busy = error_answer(503)
    output, seen = await listened(openai_server, [told, busy, told], [recording(0), recording(1)])
    assert output.text == "Good night.\nGood night."
    assert {"Good ", "Good night.", "Good night.\nGood "} <= {each.text for each in seen}
    assert seen.waits == 1


async def test_one_recording_without_times_leaves_the_subtitles_out(openai_server: OpenAIServer) -> None:
    answers: list[Reply] = [json_answer(TOLD["OpenAI"]), json_answer({"text": TEXT})]
    output, _ = await listened(openai_server, answers, [recording(0), recording(1)], subtitles=["srt"])
    assert [len(each["segments"]) for each in output.result["transcripts"]] == [2, 0]
    assert not output.artifacts
    (warning,) = output.warnings
    assert "in 1 of 2 recordings" in warning["message"]


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (error_answer(400, "Invalid file format.", param="file"), InvalidRequest),
        (error_answer(413, "too long"), RequestTooLarge),
        (json_answer({"text": 7}), ModelError),
    ],
)
async def test_the_recording_that_is_refused_is_named(
    openai_server: OpenAIServer, refusal: Reply, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        await listened(openai_server, [json_answer(TOLD["vLLM"]), refusal], [recording(0), recording(1)])
    assert caught.value.field == "messages.0.content.1"  # type: ignore[attr-defined]


async def test_a_refused_parameter_is_not_the_recordings_fault(openai_server: OpenAIServer) -> None:
    refused = error_answer(400, "too hot", param="temperature")
    with pytest.raises(InvalidRequest) as caught:
        await listened(openai_server, [refused], [recording(0), recording(1)], temperature=2.0)
    assert caught.value.field == "stages.llm.temperature"


# No times.


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"segments": None},
        {"segments": []},
        {"segments": {}},
        {"segments": "none"},
        {"segments": [None]},
        {"segments": [7, *segments()]},
        {"segments": segments({"start": None}, {})},
        {"segments": segments({"end": None}, {})},
        {"segments": segments({"start": "soon"}, {})},
        {"segments": segments({"start": -5}, {})},
        {"segments": segments({"start": 1e300}, {})},
        {"segments": segments({"start": "nan"}, {})},
        {"segments": segments({"start": [0]}, {})},
        {"segments": segments({"text": None}, {})},
    ],
    ids=repr,
)
async def test_a_transcript_without_times_says_so(openai_server: OpenAIServer, told: Any) -> None:
    output = await ask(openai_server, json_answer({"text": TEXT, **told}), parameters={"subtitles": ["srt"]})
    (transcript,) = output.result["transcripts"]
    assert (output.text, transcript["text"], transcript["segments"]) == (TEXT, TEXT, [])
    assert [each["code"] for each in output.warnings] == ["no_times"]
    assert "no subtitles" in output.warnings[0]["message"]
    assert not output.artifacts


async def test_silence_has_no_times_to_tell(openai_server: OpenAIServer) -> None:
    silent = json_answer({"text": "", "language": "nn", "duration": 0, "segments": []})
    output = await ask(openai_server, silent, parameters={"subtitles": ["vtt"]})
    assert (output.text, output.warnings) == ("", [])
    assert [bytes(each.data) for each in output.artifacts] == [b"WEBVTT\n"]


REFUSALS: dict[str, Reply] = {
    "OpenAI's newer models": error_answer(
        400,
        "response_format 'verbose_json' is not compatible with model 'gpt-4o-transcribe-api-ev3'.",
        param="response_format",
        code="unsupported_value",
    ),
    "vLLM of old": error_answer(400, "Currently only support response_format `text` or `json`"),
    "FastAPI": json_answer({"detail": [{"loc": ["body", "response_format"], "msg": "unexpected value"}]}, 422),
    "in a 200": json_answer({"error": {"message": "response_format: verbose_json is unknown", "code": 400}}),
}


@pytest.mark.parametrize("server", REFUSALS)
async def test_a_server_that_refuses_times_is_asked_for_the_text_and_remembered(
    openai_server: OpenAIServer, server: str
) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        verbose = request.form["response_format"][2] == b"verbose_json"
        await (REFUSALS[server] if verbose else json_answer({"text": TEXT}))(request, connection)

    openai_server.answers[ROUTE] = [answer]
    async with remote_runner(openai_server.url, "transcriptions") as runner:
        for _ in range(2):
            output = await runner.run(asked({"language": "en"}), Recorded())
            assert output.text == TEXT
            assert [each["code"] for each in output.warnings] == ["no_times"]
            assert output.result["transcripts"][0]["language"] == "en"
    assert forms(openai_server) == ["verbose_json", "json", "json"]


async def test_a_refusal_that_does_not_name_the_form_is_not_remembered(openai_server: OpenAIServer) -> None:
    told, refused = json_answer(TOLD["OpenAI"]), error_answer(400, "I do not like this")
    openai_server.answers[ROUTE] = [refused, json_answer({"text": TEXT}), told]
    async with remote_runner(openai_server.url, "transcriptions") as runner:
        assert times(await runner.run(asked(), Recorded())) == []
        assert times(await runner.run(asked(), Recorded())) == TIMES
    assert forms(openai_server) == ["verbose_json", "json", "verbose_json"]


async def test_a_refusal_of_words_alone_costs_the_words_alone(openai_server: OpenAIServer) -> None:
    refused = error_answer(422, "timestamp_granularities: word is not supported")
    output = await ask(openai_server, refused, json_answer(TOLD["vLLM"]), parameters={"words": True})
    assert times(output) == TIMES
    assert [each["code"] for each in output.warnings] == ["no_times"]


@pytest.mark.parametrize(
    ("answer", "message", "asks"),
    [
        (error_answer(400, "Invalid file format.", param="file"), "Invalid file format", 1),
        (error_answer(404, "no such model", param="model"), "no such model", 1),
        (error_answer(400, "no"), "400: no", 2),
        (json_answer({"segments": segments(), "text": 7}), "text: no string", 1),
        (json_answer({"segments": []}), "text: there is none", 1),
    ],
)
async def test_what_is_refused_in_every_form_fails(
    openai_server: OpenAIServer, answer: Answer, message: str, asks: int
) -> None:
    with pytest.raises(Exception, match=message):
        await ask(openai_server, answer)
    assert len(forms(openai_server)) == asks


async def test_a_busy_server_is_asked_for_times_again(openai_server: OpenAIServer) -> None:
    output = await ask(openai_server, error_answer(503), json_answer(TOLD["OpenAI"]), wait_s=5)
    assert times(output) == TIMES
    with pytest.raises(RemoteUnavailable):
        await ask(openai_server, error_answer(500))
    assert "json" not in forms(openai_server)


async def test_the_stage_config_may_settle_the_form(openai_server: OpenAIServer) -> None:
    plain = Answer(b"\xef\xbb\xbfThe baker gets up. He bakes.\n", content_type="text/plain")
    output = await ask(openai_server, plain, extra_body={"response_format": "text"})
    assert output.text == TEXT
    assert forms(openai_server) == ["text"]


# Much.


async def test_hours_of_speech_are_told_whole(openai_server: OpenAIServer) -> None:
    said = [{"start": n, "end": n + 1, "text": f" Sentence {n}."} for n in range(12_000)]
    text = "".join(str(each["text"]) for each in said)
    output = await ask(openai_server, json_answer({"text": text, "segments": said}), parameters={"subtitles": ["srt"]})
    assert len(output.result["transcripts"][0]["segments"]) == 12_000
    assert output.text == text.strip()
    assert len(json.dumps(output.values)) < 256 << 10


async def test_more_text_in_segments_than_is_taken_is_refused(openai_server: OpenAIServer) -> None:
    long = [{"start": n, "end": n + 1, "text": "a " * 100_000} for n in range(30)]
    with pytest.raises(ModelError, match="segments: more text than"):
        await ask(openai_server, json_answer({"text": "a", "segments": long}))
