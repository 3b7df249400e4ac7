"""The page Try over HTTP, as a browser without JavaScript sends its form: it makes the job that the API would make."""

import base64
import re
from collections.abc import Mapping
from html import unescape
from typing import Any

import httpx2
import pytest

from omni_jobs.client import user_message
from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve
from tests.oracles import samples

OWN = {"Sec-Fetch-Site": "same-origin"}
SOUND, PICTURE = samples.wav(0.2), samples.image()
Fields = Mapping[str, str | list[str] | bytes | None]


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def tried(api: ApiServer, pipeline: str, fields: Fields, **headers: str) -> httpx2.Response:
    """Send a form: texts, a list of checked boxes, bytes of a file; None is a field in which no file was chosen."""
    form: list[tuple[str, Any]] = [("model", (None, pipeline))]
    for name, value in fields.items():
        if isinstance(value, bytes):
            form.append((name, ("a.bin", value)))
        elif value is None:
            form.append((name, ("", b"", "application/octet-stream")))
        else:
            form += [(name, (None, each)) for each in ([value] if isinstance(value, str) else value)]
    return api.http.post("/try", files=form, headers=OWN | headers)


def job_of(answer: httpx2.Response) -> str:
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].removeprefix("/jobs/")


def problems_of(html: str) -> dict[str, str]:
    found = re.findall(r'<p class="wrong" id="problem-([^"]*)"><bdi>(.*?)</bdi>', html)
    return {name: unescape(text) for name, text in found}


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


MESSAGE: dict[str, Any] = {
    "role": "user",
    "content": [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(SOUND).decode()}},
        {"type": "image_url", "image_url": {"url": data_url("image/png", PICTURE)}},
        {"type": "text", "text": "What is\nthis?"},
    ],
}


@pytest.mark.parametrize(
    ("pipeline", "fields", "body"),
    [
        ("echo", {"text": "Hello"}, {"messages": [user_message("Hello")]}),
        (
            "echo",
            {"text": "<b>\r\n灯台", "stages.first.delay_s": "0.5", "stages.second.payload_bytes": ""},
            {"messages": [user_message("<b>\n灯台")], "stages": {"first": {"delay_s": 0.5}}},
        ),
        (
            "echo_media",
            {
                "text": "What is\r\nthis?",
                "audio": SOUND,
                "image": PICTURE,
                "video": None,
                "system": "Be brief",
                "modalities": ["text", "audio", "image"],
                "audio.voice": "nova",
                "audio.format": "mp3",
                "image.format": "",
                "previews": "on",
                "keep_payloads": "on",
                "stages.answer.stop": "END\r\nSTOP",
                "stages.answer.words": "no",
                "stages.answer.subtitles": ["srt", "vtt"],
                "stages.picture.width": "128",
            },
            {
                "messages": [{"role": "system", "content": "Be brief"}, MESSAGE],
                "modalities": ["text", "audio", "image"],
                "audio": {"voice": "nova", "format": "mp3"},
                "previews": True,
                "keep_payloads": True,
                "stages": {
                    "answer": {"stop": ["END", "STOP"], "words": False, "subtitles": ["srt", "vtt"]},
                    "picture": {"width": 128},
                },
            },
        ),
    ],
)
def test_a_form_makes_the_job_that_the_api_would_make(
    api: ApiServer, pipeline: str, fields: Fields, body: dict[str, Any]
) -> None:
    by_form = job_of(tried(api, pipeline, {**fields, "seed": "7"}))
    answer = api.http.post("/v1/jobs", json={"model": pipeline, "seed": 7, **body})
    assert answer.status_code == 202, answer.text
    by_api = answer.json()["id"]
    jobs = api.services.jobs
    assert jobs.admitted_request(by_form) == jobs.admitted_request(by_api)
    mine, its = api.http.get(f"/v1/jobs/{by_form}").json(), api.http.get(f"/v1/jobs/{by_api}").json()
    varies = {"id", "created_at", "stages", "waiting"}
    assert {name: mine[name] for name in mine.keys() - varies} == {name: its[name] for name in its.keys() - varies}
    assert [stage["name"] for stage in mine["stages"]] == [stage["name"] for stage in its["stages"]]


@pytest.mark.parametrize(
    ("pipeline", "fields", "status", "places"),
    [
        ("echo", {"text": ""}, 422, {"text": "type something"}),
        ("echo", {"text": "x", "stages.first.delay_s": "5000"}, 422, {"stages.first.delay_s": "less than or equal"}),
        (
            "echo",
            {"text": "x", "stages.first.delay_s": "soon", "seed": "x"},
            422,
            {"stages.first.delay_s": "number", "seed": "whole"},
        ),
        ("echo_media", {"text": "x", "image": b"no picture"}, 422, {"image": "PNG"}),
        ("echo_media", {"audio": b""}, 422, {"audio": "empty"}),
        ("echo_media", {"text": "x", "audio.voice": "no", "modalities": ["audio"]}, 422, {"audio.voice": "unknown"}),
        ("echo_media", {"text": "x", "modalities": ["smell"]}, 422, {"modalities": "does not make"}),
        ("echo_media", {"text": "x", "stages.video.width": "640"}, 422, {}),
        ("echo_media", {"text": "x", "stages.video.pace": "1"}, 422, {}),
    ],
)  # fmt: skip
def test_an_error_stands_beside_its_field_and_nothing_typed_is_lost(
    api: ApiServer, pipeline: str, fields: Fields, status: int, places: Mapping[str, str]
) -> None:
    typed = {"system": "</textarea><b>Be brief", **fields}
    answer = tried(api, pipeline, typed)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    problems = problems_of(answer.text)
    assert problems.keys() == places.keys() or not places
    assert all(word in problems[name] for name, word in places.items()), problems
    if not places:
        assert "notice bad" in answer.text
    assert "&lt;/textarea&gt;&lt;b&gt;Be brief" in answer.text
    for name, value in fields.items():
        if isinstance(value, str) and name != "audio.voice" and "pace" not in name and value:
            assert f'name="{name}"' in answer.text
            assert f'value="{value}"' in answer.text or f">\n{value}</textarea>" in answer.text
    assert api.http.get("/v1/jobs").json()["jobs"] == []


def test_a_form_that_is_sent_twice_makes_one_job_and_another_makes_another(api: ApiServer) -> None:
    [once] = re.findall(r'name="once" value="(\w+)"', api.http.get("/try?pipeline=echo").text)
    first, again = (job_of(tried(api, "echo", {"text": "Hello", "once": once})) for _ in range(2))
    other = job_of(tried(api, "echo", {"text": "Hello!", "once": once}))
    fresh = re.findall(r'name="once" value="(\w+)"', api.http.get("/try?pipeline=echo").text)[0]
    new = job_of(tried(api, "echo", {"text": "Hello", "once": fresh}))
    assert first == again
    assert len({first, other, new}) == 3


def test_a_script_gets_the_answer_and_the_name_of_the_next_try(api: ApiServer) -> None:
    answer = tried(api, "echo", {"text": "Hello", "once": "a"}, **{"HX-Request": "true"})
    assert answer.status_code == 201
    [job] = re.findall(r'data-job="([^"]+)"', answer.text)
    assert re.findall(r'data-once="(\w{16})"', answer.text)
    assert f'hx-get="/fragments/answers/{job}"' in answer.text
    assert "<html" not in answer.text
    fragment = api.http.get(f"/fragments/answers/{job}")
    assert (fragment.status_code, "queued" in fragment.text) == (200, True)
    assert job in api.http.get(f"/try?pipeline=echo&job={job}").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/try?pipeline=nowhere", 404),
        ("/try?job=job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f", 404),
        ("/try?job=x", 422),
        ("/try?x=1", 422),
    ],
)
def test_what_is_not_there_is_a_page_that_says_so(api: ApiServer, path: str, status: int) -> None:
    answer = api.http.get(path)
    assert (answer.status_code, f"<h1>{status}</h1>" in answer.text) == (status, True)


def test_a_pipeline_that_takes_no_jobs_says_why_and_has_no_form(api: ApiServer) -> None:
    html = api.http.get("/try?pipeline=chat").text  # no checkpoint is configured
    assert "notice bad" in html
    assert "<form" not in html.partition("<main")[2]


def test_forms_of_other_pages_and_of_nowhere_are_refused(api: ApiServer) -> None:
    form = [("model", (None, "echo")), ("text", (None, "Hello"))]
    for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://example.com"}):
        assert api.http.post("/try", files=form, headers=headers).status_code == 403
    assert tried(api, "nowhere", {"text": "Hello"}).status_code == 404
    assert api.http.get("/v1/jobs").json()["jobs"] == []


def test_a_key_without_the_scope_submit_sees_the_form_and_submits_nothing(settings: Settings) -> None:
    database = Database(settings.resolved_database_url)
    Tenants(database).create("acme")
    keys = ApiKeys(database)
    reader, submitter = (
        {"Authorization": f"Bearer {keys.create('acme', scopes).key}"} for scopes in (["read"], ["read", "submit"])
    )
    database.close()
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        page = api.http.get("/try?pipeline=echo", headers=reader).text
        assert '<fieldset class="whole" disabled>' in page
        assert "scope <code>submit</code>" in page
        assert tried(api, "echo", {"text": "Hello"}, **reader).status_code == 403
        assert api.http.get("/v1/jobs", headers=reader).json()["jobs"] == []
        job = job_of(tried(api, "echo", {"text": "Hello"}, **submitter))
        assert api.http.get(f"/v1/jobs/{job}", headers=submitter).json()["tenant"] == "acme"


def test_a_server_that_is_full_says_so_in_the_form(settings: Settings) -> None:
    with serve(settings.model_copy(update={"max_queued_jobs": 1})) as api:
        assert tried(api, "echo", {"text": "Hello"}).status_code == 303
        answer = tried(api, "echo", {"text": "Again"})
        assert answer.status_code == 429
        assert "notice bad" in answer.text
        assert "Again</textarea>" in answer.text
