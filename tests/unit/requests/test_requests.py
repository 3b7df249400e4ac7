"""omni_jobs.requests: what is admitted, and every refusal with the field it names."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.api.examples import SUBMITS
from omni_jobs.errors import InvalidRequest, ModelMissing, NotFound, OmniJobsError, RequestTooLarge
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.wall import MediaWall
from omni_jobs.new_job import NewJob
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.requests import JobRequest, admit, cancel_after, check_deadline, cost, parse
from omni_jobs.settings import Settings
from tests.oracles import samples

ROOT = Path(__file__).parents[3]
HELLO = [{"role": "user", "content": "Hello"}]
WAV = samples.wav()
USUAL = Settings(max_body_bytes=4 << 20, max_media_parts=3)
_WALLS: list[MediaWall] = []


@pytest.fixture(scope="module")
def pipelines() -> Pipelines:
    return load_pipelines(ROOT / "stage_configs")


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: Path) -> Settings:
    return USUAL.model_copy(update={"models": {"qwen2_5_omni": tiny_checkpoint}})


@pytest.fixture(scope="module", autouse=True)
def wall() -> Iterator[None]:
    """One for all with the usual limits, as a server has one."""
    with MediaWall(USUAL) as wall:
        _WALLS.append(wall)
        yield
    _WALLS.clear()


def admitted(pipelines: Pipelines, settings: Settings, **body: Any) -> NewJob:
    usual = MediaLimits.of(settings) == MediaLimits.of(USUAL)
    whole = {"model": "qwen2_5_omni", "messages": HELLO, **body}
    return admit(parse(whole, settings), pipelines, settings, wall=_WALLS[0] if usual else None)


def says(*content: Any, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(content)}]


# What is admitted


@pytest.fixture
def prompt_tokens(monkeypatch: pytest.MonkeyPatch) -> Callable[[NewJob], float]:
    """Return how many tokens of a prompt a job of usual parameters pays for, where each is paid for."""
    monkeypatch.setattr(cost, "USUAL_PROMPT", 0)
    return lambda job: (job.cost - 1) * cost.TOKENS_OF_COST_1


def test_a_prompt_has_the_tokens_that_its_model_counts(
    pipelines: Pipelines, settings: Settings, prompt_tokens: Callable[[NewJob], float]
) -> None:
    contents = [
        {"type": "text", "text": "Hello"},
        {"type": "text", "text": "long words " * 100},
        samples.audio_part(WAV),
        samples.audio_part(samples.wav(5.0)),
    ]
    short, long, sound, longer_sound = (
        prompt_tokens(admitted(pipelines, settings, messages=says(content, {"type": "text", "text": "Hello"})))
        for content in contents
    )
    assert 0 < short < long
    assert short < sound < longer_sound


def test_where_no_model_counts_the_tokens_of_a_prompt_its_size_tells_them(
    pipelines: Pipelines, settings: Settings, prompt_tokens: Callable[[NewJob], float]
) -> None:
    said = [{"role": "user", "content": "é" * 4000}]
    assert prompt_tokens(admitted(pipelines, settings, model="echo", messages=said)) == 2000
    picture = says(samples.image_part(samples.image(280, 140)))
    assert prompt_tokens(admitted(pipelines, settings, model="upscale", messages=picture)) == 50


def test_the_least_request(pipelines: Pipelines, settings: Settings) -> None:
    found = admitted(pipelines, settings)
    assert found.request == {
        "model": "qwen2_5_omni",
        "messages": HELLO,
        "modalities": ["text"],
        "parameters": {},
        "return_token_ids": False,
    }
    assert [stage.name for stage in found.stages] == ["thinker"]
    assert found.unstored == []
    assert 0 <= found.seed < 1 << 63
    assert found.metadata == {}


def test_the_whole_request(pipelines: Pipelines, settings: Settings) -> None:
    image, clip = samples.image(), samples.video()
    found = admitted(
        pipelines,
        settings,
        messages=[
            {"role": "system", "content": "简短回答。"},
            *says(
                samples.audio_part(WAV),
                {"type": "text", "text": "ماذا تسمع؟ 🙂"},
                samples.image_part(image),
                samples.video_part(clip),
            ),
        ],
        modalities=["audio", "text", "audio"],
        audio={"voice": "Ethan", "format": "wav"},
        temperature=0.5,
        max_completion_tokens=7,
        stop="\n",
        stages={"talker": {"top_k": 5}, "thinker": {"temperature": 0.5}, "code2wav": {"steps": 4}},
        seed=2**63 - 1,
        metadata={"заказ": "42"},
        return_token_ids=True,
    )
    assert found.request["messages"] == [
        {"role": "system", "content": "简短回答。"},
        *says(
            {"type": "audio", "media": 0},
            {"type": "text", "text": "ماذا تسمع؟ 🙂"},
            {"type": "image", "media": 1},
            {"type": "video", "media": 2},
        ),
    ]
    assert found.modalities == ("audio", "text")
    assert found.request["audio"] == {"voice": "Ethan", "format": "wav"}
    assert found.request["parameters"] == {
        "talker": {"top_k": 5},
        "thinker": {"temperature": 0.5, "max_tokens": 7, "stop": ["\n"]},
        "code2wav": {"steps": 4},
    }
    assert found.request["return_token_ids"] is True
    assert [(media.media_type, media.data) for media in found.unstored] == [
        ("audio/wav", WAV),
        ("image/png", image),
        ("video/mp4", clip),
    ]
    assert [stage.name for stage in found.stages] == ["thinker", "talker", "code2wav"]
    assert found.seed == 2**63 - 1
    assert found.metadata == {"заказ": "42"}
    json.dumps(found.request)


def test_the_voice_defaults_to_the_pipelines_first(pipelines: Pipelines, settings: Settings) -> None:
    assert admitted(pipelines, settings, modalities=["audio"]).request["audio"]["voice"] == "Chelsie"


def test_previews_are_made_for_those_who_ask(pipelines: Pipelines, settings: Settings) -> None:
    assert admitted(pipelines, settings, previews=True).request["previews"] is True
    assert admitted(pipelines, settings, previews=False).request == admitted(pipelines, settings).request


def test_nulls_are_as_good_as_absent(pipelines: Pipelines, settings: Settings) -> None:
    optional = [name for name, field in JobRequest.model_fields.items() if not field.is_required()]
    nulls = {name: None for name in optional if name not in ("messages", "return_token_ids")}
    assert admitted(pipelines, settings, **nulls).request == admitted(pipelines, settings).request


def test_bytes_and_objects_are_admitted_alike(pipelines: Pipelines, settings: Settings) -> None:
    body = {"seed": 1, "model": "qwen2_5_omni", "messages": says({"type": "text", "text": "é 中"})}
    as_object, as_bytes = (
        admit(parse(form, settings), pipelines, settings) for form in (body, json.dumps(body, indent=1).encode())
    )
    assert replace(as_object, job_id=as_bytes.job_id) == as_bytes
    as_utf8 = admit(parse(json.dumps(body, ensure_ascii=False, sort_keys=True).encode(), settings), pipelines, settings)
    assert as_utf8.request_digest == as_object.request_digest
    other = admit(parse({**body, "seed": 2}, settings), pipelines, settings)
    assert other.request_digest != as_object.request_digest


def test_token_ids_are_given_where_tokens_are_generated(pipelines: Pipelines, settings: Settings) -> None:
    """A job whose stages generate none would give none, although it was asked for them."""
    assert admitted(pipelines, settings, return_token_ids=True).request["return_token_ids"] is True
    assert admitted(pipelines, settings, model="echo", return_token_ids=False)
    for model in ("echo", "transcribe", "upscale"):
        with pytest.raises(InvalidRequest, match="no stage of this job generates tokens") as caught:
            admitted(pipelines, settings, model=model, return_token_ids=True)
        assert caught.value.field == "return_token_ids"


def test_a_pipeline_without_a_model(pipelines: Pipelines) -> None:
    body = {"model": "echo", "messages": HELLO, "stages": {"first": {"delay_s": 1, "payload_bytes": 10}}}
    found = admit(parse(body, Settings()), pipelines, Settings())
    assert [stage.name for stage in found.stages] == ["first", "second"]
    assert found.request["parameters"] == {"first": {"delay_s": 1, "payload_bytes": 10}}


@pytest.mark.parametrize("name", SUBMITS)
def test_the_documents_examples_are_admitted(pipelines: Pipelines, settings: Settings, name: str) -> None:
    admit(parse(SUBMITS[name]["value"], settings), pipelines, settings)


# Deadlines


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1_900_000_000, 1_900_000_000.0),
        (1_900_000_000.25, 1_900_000_000.25),
        ("2030-03-17T17:46:40Z", 1_900_000_000.0),
        ("2030-03-17t17:46:40.5z", 1_900_000_000.5),
        ("2030-03-17 18:46:40+01:00", 1_900_000_000.0),
        ("2030-03-17T12:16:40.123456789-05:30", 1_900_000_000.123456),
        (None, None),
    ],
)
def test_expires_at(pipelines: Pipelines, settings: Settings, value: Any, seconds: float | None) -> None:
    found = admitted(pipelines, settings, expires_at=value)
    assert found.expires_at == (seconds if seconds is None else pytest.approx(seconds, abs=1e-5))
    assert "expires_at" not in found.request


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("1", 1), ("90", 90), ("90s", 90), ("1.5s", 1.5), ("15m", 900), ("2h", 7200), (" 720h ", 30 * 86_400)],
)
def test_cancel_after(header: str, seconds: float) -> None:
    assert cancel_after(header) == seconds


@pytest.mark.parametrize(
    "header", ["", "soon", "0", "0.9", "-5", "1d", "2H", "1e3", "٣", "30 s", "721h", "40d", "2592001", "9" * 12, "nan"]
)
def test_cancel_after_that_is_none(header: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cancel_after(header)
    assert caught.value.field == "Cancel-After"
    assert caught.value.message == "must be 1 s to 30 days: a number of seconds, or like 90s, 15m, 2h (720h at most)"


def test_a_deadline_lies_ahead_and_not_too_far() -> None:
    check_deadline(1000.5, now=1000)
    for deadline, complaint in ((1000.0, "future"), (0.0, "future"), (1000.0 + 31 * 86_400, "30 days")):
        with pytest.raises(InvalidRequest, match=complaint) as caught:
            check_deadline(deadline, now=1000)
        assert caught.value.field == "expires_at"


# What is refused


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def picture(url: str) -> list[dict[str, Any]]:
    return says({"type": "image_url", "image_url": {"url": url}})


AUDIO = "messages.0.content.0.input_audio.data"
IMAGE = "messages.0.content.0.image_url.url"
VIDEO = "messages.0.content.0.video_url.url"

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    # The shape
    "unknown key": ({"best_of": 2}, "best_of", "unknown key"),
    "several answers": ({"n": 2}, "n", "several jobs"),
    "unknown key in a message": ({"messages": [{**HELLO[0], "name": "x"}]}, "messages.0.name", "unknown key"),
    "unknown key in a part": (
        {"messages": says({"type": "text", "text": "a", "b": 1})}, "messages.0.content.0.b", "unknown key"),
    "messages missing": ({"messages": None}, "messages", "required"),
    "embeddings": ({"messages": None, "prompt_embeds": {"data": "AAAA"}}, "prompt_embeds", "takes no embeddings"),
    "messages empty": ({"messages": []}, "messages", "1 or more"),
    "messages no array": ({"messages": "Hello"}, "messages", "array"),
    "message no object": ({"messages": ["Hello"]}, "messages.0", "object"),
    "role": ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "'user'"),
    "no content": ({"messages": [{"role": "user"}]}, "messages.0.content", "required"),
    "content empty": ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content", "empty"),
    "content without parts": ({"messages": says()}, "messages.0.content", "1 or more"),
    "content of empty texts": ({"messages": says({"type": "text", "text": ""})}, "messages.0.content", "empty"),
    "content a number": ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "string or an array"),
    "part unknown": ({"messages": says({"type": "smell"})}, "messages.0.content.0", "input_audio"),
    "part a string": ({"messages": says("x")}, "messages.0.content.0", "input_audio"),
    "part without its body": (
        {"messages": says({"type": "image_url"})}, "messages.0.content.0.image_url", "required"),
    "part's body a string": (
        {"messages": says({"type": "image_url", "image_url": "x"})}, "messages.0.content.0.image_url", "object"),
    # Modalities and voice
    "modality": ({"modalities": ["text", "smell"]}, "modalities.1", "text, audio"),
    "modalities empty": ({"modalities": []}, "modalities", "1 or more"),
    "voice": ({"modalities": ["audio"], "audio": {"voice": "Bob"}}, "audio.voice", "Chelsie, Ethan"),
    "audio format": ({"modalities": ["audio"], "audio": {"format": "ogg9"}}, "audio.format", "it has: wav, flac, mp3"),
    "image options without an image": ({"image": {"format": "png"}}, "image", "modalities"),
    "audio without its modality": ({"audio": {"voice": "Ethan"}}, "audio", "modalities"),
    # Sampling
    "temperature negative": ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
    "temperature absurd": ({"temperature": 1e300}, "temperature", "less than or equal to 2"),
    "temperature in quotes": ({"temperature": "1"}, "temperature", "number"),
    "temperature true": ({"temperature": True}, "temperature", "number"),
    "top_p": ({"top_p": 0}, "top_p", "greater than 0"),
    "presence_penalty": ({"presence_penalty": 3}, "presence_penalty", "less"),
    "frequency_penalty": ({"frequency_penalty": -3}, "frequency_penalty", "greater"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens", "1"),
    "max_tokens negative": ({"max_completion_tokens": -5}, "max_completion_tokens", "1"),
    "max_tokens absurd": ({"max_tokens": 10**40}, "max_tokens", "64 bits"),
    "max_tokens a fraction": ({"max_tokens": 1.5}, "max_tokens", "integer"),
    "max_tokens twice": (
        {"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "see max_tokens"),
    "temperature twice": (
        {"temperature": 1, "stages": {"thinker": {"temperature": 0.5}}}, "temperature", "see stages.thinker"),
    "stop of numbers": ({"stop": [1]}, "stop.0", "string"),
    "stop empty": ({"stop": ""}, "stop", "at least 1"),
    "too many stops": ({"stop": ["x"] * 17}, "stop", "16"),
    "another form": ({"response_format": {"type": "xml"}}, "response_format.type", "'json_schema'"),
    "a form that is no object": ({"response_format": "json"}, "response_format", "object"),
    "a form's schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strnig"}}}},
        "response_format.json_schema.schema", "type must be of array"),
    "a stage's form": (
        {"stages": {"thinker": {"response_format": {"type": "json_object", "x": 1}}}},
        "stages.thinker.response_format.x", "unknown key"),
    "a form that does not end": (
        {"response_format": {"type": "json_object"}, "stages": {"thinker": {"ignore_eos": True}}},
        "response_format", "ends where it is complete"),
    "top_logprobs alone": ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
    "top_logprobs of 21": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    "logprobs of too many tokens": (
        {"logprobs": True, "stages": {"thinker": {"max_tokens": 200_000}}}, "stages.thinker.top_logprobs", "at most"),
    "a form of an echo": (
        {"model": "echo", "response_format": {"type": "json_object"}}, "response_format", "does not take it"),
    "logprobs of an echo": ({"model": "echo", "logprobs": True}, "logprobs", "does not take it"),
    "a stop string of codes": (
        {"modalities": ["audio"], "stages": {"talker": {"stop": ["x"]}}}, "stages.talker.stop", "unknown key"),
    "tools where no parser is named": (
        {"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools", "no stage of pipeline qwen2_5_omni"),
    "tools of an echo": (
        {"model": "echo", "tools": [{"type": "function", "function": {"name": "x"}}]}, "tools", "no stage of pipe"),
    "an answer of a tool where none is called": (
        {"messages": [*HELLO, {"role": "tool", "tool_call_id": "x", "content": "y"}]}, "messages.1.role", "no stage"),
    "stage unknown": ({"stages": {"foo": {}}}, "stages.foo", "thinker, talker, code2wav"),
    "stage not needed": ({"stages": {"talker": {"top_k": 1}}}, "stages.talker", "do not need"),
    "stage's value": ({"stages": {"thinker": {"top_k": -2}}}, "stages.thinker.top_k", "greater"),
    "stage's name": ({"stages": {"thinker": {"bogus": 1}}}, "stages.thinker.bogus", "unknown key"),
    "stage no object": ({"stages": {"thinker": 5}}, "stages.thinker", "object"),
    "min above max": (
        {"max_tokens": 3, "stages": {"thinker": {"min_tokens": 4}}}, "stages.thinker.min_tokens", "max_tokens"),
    "another stage's value": (
        {"modalities": ["audio"], "stages": {"code2wav": {"steps": 10**6}}}, "stages.code2wav.steps", "1000"),
    "seed negative": ({"seed": -1}, "seed", "greater"),
    "seed too large": ({"seed": 2**63}, "seed", "less"),
    "seed of 1,000 digits": ({"seed": 10**999}, "seed", "64 bits"),
    "metadata": ({"metadata": {"a": 1}}, "metadata.a", "string"),
    "metadata long": ({"metadata": {"a": "x" * 600}}, "metadata.a", "512"),
    "expires_at true": ({"expires_at": True}, "expires_at", "RFC 3339"),
    "expires_at an object": ({"expires_at": {}}, "expires_at", "RFC 3339"),
    "expires_at no time": ({"expires_at": "tomorrow"}, "expires_at", "RFC 3339"),
    "expires_at a date": ({"expires_at": "2030-01-01"}, "expires_at", "RFC 3339"),
    "expires_at without zone": ({"expires_at": "2030-01-01T00:00:00"}, "expires_at", "zone"),
    "expires_at of no calendar": ({"expires_at": "2030-02-30T00:00:00Z"}, "expires_at", "calendar"),
    "expires_at negative": ({"expires_at": -1}, "expires_at", "unix seconds"),
    "expires_at in milliseconds": ({"expires_at": 1_900_000_000_000}, "expires_at", "unix seconds"),
    # Media
    "audio no base64": (
        {"messages": says({"type": "input_audio", "input_audio": {"data": "§§"}})}, AUDIO, "not base64"),
    "audio cut base64": (
        {"messages": says({"type": "input_audio", "input_audio": {"data": "QUJDR"}})}, AUDIO, "not base64"),
    "audio no audio": ({"messages": says(samples.audio_part(b"hello there"))}, AUDIO, "not audio"),
    "audio truncated": ({"messages": says(samples.audio_part(WAV[:-100]))}, AUDIO, "cut off"),
    "audio empty": ({"messages": says(samples.audio_part(b""))}, AUDIO, "no bytes"),
    "image 1x1": ({"messages": picture(data_url(samples.image(1, 1)))}, IMAGE, "1×1"),
    "image no image": ({"messages": picture(data_url(b"hello"))}, IMAGE, "not an image"),
    "image by http": ({"messages": picture("http://example.org/a.png")}, IMAGE, "not fetched"),
    "image by https": ({"messages": picture("HTTPS://example.org/a.png")}, IMAGE, "not fetched"),
    "image by file": ({"messages": picture("file:///etc/passwd")}, IMAGE, "data: URL"),
    "image by path": ({"messages": picture("/etc/passwd")}, IMAGE, "data: URL"),
    "image not in base64": ({"messages": picture("data:image/png,abc")}, IMAGE, "data: URL"),
    "video no video": ({"messages": says(samples.video_part(b"hello"))}, VIDEO, "not a video"),
    "video by http": (
        {"messages": says({"type": "video_url", "video_url": {"url": "https://x/y.mp4"}})}, VIDEO, "not fetched"),
    "media of the system": ({"messages": says(samples.audio_part(WAV), role="system")}, AUDIO, "user's"),
    # The text
    "too many tokens": ({"messages": says({"type": "text", "text": "x" * 8200})}, "messages", "at most 8191"),
    "reserved text": (
        {"messages": [{"role": "user", "content": "a<|im_start|>b"}]}, "messages.0.content", "reserve"),
    "NUL": ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages.0.content", "U+0000"),
    "NUL in a key": ({"metadata": {"a\0": "b"}}, "metadata.a\\x00", "U+0000"),
    "half a pair": ({"messages": says({"type": "text", "text": "\ud83d"})}, "messages.0.content.0.text", "U+D83D"),
    "half a pair in a key": ({"\udc00": 1}, "\\udc00", "U+DC00"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(pipelines: Pipelines, settings: Settings, name: str) -> None:
    body, field, complaint = REFUSED[name]
    with pytest.raises(InvalidRequest) as caught:
        admitted(pipelines, settings, **body)
    assert caught.value.field == field
    assert complaint in caught.value.message


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": HELLO * 300}, "messages"),
        ({"messages": says(*[samples.audio_part(WAV)] * 4)}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 2048}]}, "messages.0.content"),
        ({"messages": says(samples.audio_part(samples.wav(2.0)))}, AUDIO),
        ({"messages": picture(data_url(samples.image(200, 200)))}, IMAGE),
        ({"messages": says(samples.video_part(samples.video(30)))}, VIDEO),
        ({"messages": [{"role": "user", "content": "x" * 300_000}]}, "body"),
    ],
)
def test_too_large(pipelines: Pipelines, settings: Settings, body: dict[str, Any], field: str) -> None:
    limits = {"max_body_bytes": 300_000, "max_text_bytes": 2047, "max_audio_s": 1.0, "max_video_s": 2.0,
              "max_image_pixels": 30_000}  # fmt: skip
    with pytest.raises(RequestTooLarge) as caught:
        admitted(pipelines, settings.model_copy(update=limits), **body)
    assert caught.value.field == field


def test_one_length_given_twice(pipelines: Pipelines, settings: Settings) -> None:
    twice = {"denoise": {"seconds": 2.0, "num_frames": 33}}
    with pytest.raises(InvalidRequest, match="seconds as well") as caught:
        admitted(pipelines, settings, model="wan", modalities=["video"], stages=twice)
    assert caught.value.field == "stages.denoise.num_frames"


def test_an_unknown_pipeline(pipelines: Pipelines, settings: Settings) -> None:
    with pytest.raises(NotFound, match="echo, echo_media, glm_image, qwen2_5_omni") as caught:
        admitted(pipelines, settings, model="gpt")
    assert caught.value.field == "model"


def test_a_pipeline_whose_checkpoint_is_not_here(pipelines: Pipelines) -> None:
    with pytest.raises(ModelMissing) as caught:
        admitted(pipelines, Settings())
    assert (caught.value.field, caught.value.http_status) == ("model", 503)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": says(samples.audio_part(WAV))}, AUDIO),
        ({"temperature": 1}, "temperature"),
        ({"modalities": ["audio"]}, "modalities.0"),
    ],
)
def test_what_another_pipeline_takes(pipelines: Pipelines, body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        admit(parse({"model": "echo", "messages": HELLO, **body}, Settings()), pipelines, Settings())
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b'{"model": "echo", "model": "echo"}', "given twice"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": -Infinity}', "Infinity"),
        (b'\xff\xfe{"a": 1}', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1', "not valid JSON"),
        (b'{"model": "\xed\xa0\x80"}', "not UTF-8"),
        (b"[" * 40_000, "nested deeper"),
        (b'{"a":' * 40_000, "nested deeper"),
        (b'{"stages":' + b"[" * 40 + b"]" * 40 + b"}", "nested deeper"),
        (b'{"a": "\x01"}', "not valid JSON"),
    ],
)
def test_bodies_that_are_no_request(pipelines: Pipelines, settings: Settings, body: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        admit(parse(body, settings), pipelines, settings)


@pytest.mark.parametrize("spaces", [0, 40_000])
def test_a_number_of_any_length_is_refused_by_its_field(spaces: int) -> None:
    """Python itself reads no whole number of more than 4,300 digits."""
    for sign in (b"", b"-"):
        body = b'{"seed": ' + sign + b"1" * 5000 + b" " * spaces + b"}"
        with pytest.raises(InvalidRequest, match="the number takes more than 64 bits") as caught:
            parse(body, USUAL)
        assert caught.value.field == "seed"


def test_a_body_of_very_many_values(pipelines: Pipelines, settings: Settings) -> None:
    with pytest.raises(RequestTooLarge, match="values"):
        admit(parse(b'{"stages":[' + b"[]," * 1_200_000 + b"[]]}", settings), pipelines, settings)


def test_an_object_that_is_no_json(pipelines: Pipelines, settings: Settings) -> None:
    circle: dict[str, Any] = {}
    circle["stages"] = circle
    for body in ({"messages": {1, 2}}, circle):
        with pytest.raises(InvalidRequest, match="not JSON"):
            admitted(pipelines, settings, **body)


def test_no_cut_of_a_wav_gets_in_or_crashes(pipelines: Pipelines, settings: Settings) -> None:
    for length in [*range(60), *range(60, len(WAV), 997)]:
        with pytest.raises(OmniJobsError):
            admitted(pipelines, settings, messages=says(samples.audio_part(WAV[:length])))


def test_headers_that_lie(pipelines: Pipelines, settings: Settings) -> None:
    def refused_field(data: bytes) -> str | None:
        try:
            admitted(pipelines, settings, messages=says(samples.audio_part(data)))
        except OmniJobsError as error:
            return error.field
        return None

    for offset in range(4, 44):
        data = bytearray(WAV)
        data[offset] ^= 0xFF
        assert refused_field(bytes(data)) in (None, AUDIO)
