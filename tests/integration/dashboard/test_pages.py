"""What every page of the dashboard has: its policy, its errors, its links, and an answer for each key."""

import re
from html.parser import HTMLParser

import pytest

from omni_jobs.dashboard.navigation import NAVIGATION
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from tests.integration.api_server import ApiServer, serve

NOWHERE = "job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = ("href", "src", "action", "hx-get", "hx-post")
        self.found += [value or "" for name, value in attributes if name in names]


def links_of(html: str) -> list[str]:
    links = _Links()
    links.feed(html)
    return [link for link in links.found if not link.startswith("#")]


@pytest.mark.parametrize("path", [entry.path for entry in NAVIGATION] + ["/jobs/none"])
def test_a_page_has_a_policy_that_allows_nothing_inline_or_foreign(api: ApiServer, path: str) -> None:
    answer = api.http.get(path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy.pop("default-src") == "'none'"
    words = {word for sources in policy.values() for word in sources.split()}
    assert {word for word in words if not word.startswith("'sha256-")} == {"'self'", "'none'"}
    assert policy["script-src"] == "'self'"
    assert re.findall(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", answer.text) == []
    assert answer.headers["referrer-policy"] == "same-origin"  # else browsers send "Origin: null" with a form


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        (f"/jobs/{NOWHERE}", 404, None),
        ("/jobs/x", 404, "job_id"),
        ("/?x=1", 422, "x"),
        ("/jobs?pipeline=nope", 404, "pipeline"),
        ("/fragments/overview?x=1", 422, "x"),
    ],
)
def test_an_error_is_a_page_that_says_it(api: ApiServer, path: str, status: int, field: str | None) -> None:
    answer = api.http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert f"<h1>{status}</h1>" in answer.text
    assert field is None or field in answer.text


def test_all_links_stand_below_the_prefix(settings: Settings) -> None:
    with serve(settings.model_copy(update={"root_path": "/jobs-api"})) as api:
        for entry in NAVIGATION:
            html = api.http.get(f"/jobs-api{entry.path}").text
            links = links_of(html)
            assert links
            assert [link for link in links if not link.startswith(("/jobs-api/", "?"))] == []
        [script] = [link for link in links if link.endswith("htmx.js")]
        assert api.http.get(script).status_code == 200
        assert api.http.get(script.removeprefix("/jobs-api")).status_code == 200  # as a proxy that strips it asks


def test_who_has_no_session_is_sent_to_the_sign_in(settings: Settings, keys: ApiKeys) -> None:
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        for path, to in (("/", "/signin"), (f"/jobs/{NOWHERE}", f"/signin?to=/jobs/{NOWHERE}")):
            answer = api.http.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, to)
        polled = api.http.get("/fragments/overview", headers={"HX-Request": "true"})
        assert (polled.status_code, polled.headers["hx-redirect"], polled.content) == (401, "/signin", b"")


def test_a_fragment_of_one_tenant_is_no_others(settings: Settings, keys: ApiKeys) -> None:
    echo = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
    of = {name: {"Authorization": f"Bearer {keys.create(name, ['submit', 'read']).key}"} for name in ("acme", "globex")}
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        job = api.http.post("/v1/jobs", json=echo, headers=of["acme"]).json()["id"]
        pages = {name: api.http.get("/fragments/newest", headers=of[name]).text for name in of}
    assert (job in pages["acme"], job in pages["globex"]) == (True, False)


def test_the_examples_of_the_filters_are_ones_that_the_server_takes(api: ApiServer) -> None:
    html = api.http.get("/jobs").text
    examples = dict(re.findall(r'name="(created_\w+)"[^>]*placeholder="([^"]+)"', html))
    assert set(examples) == {"created_after", "created_before"}
    assert api.http.get("/jobs", params=examples).status_code == 200


@pytest.mark.parametrize("accept", ["text/html,*/*;q=0.8", "*/*", "application/json"])
@pytest.mark.parametrize("path", ["/jobs/a/b", "/v1/nothing"])
def test_a_path_that_no_route_has_is_a_page_for_a_browser_outside_the_api(
    api: ApiServer, path: str, accept: str
) -> None:
    answer = api.http.get(path, headers={"Accept": accept})
    is_page = path == "/jobs/a/b" and "html" in accept
    assert answer.status_code == 404
    assert answer.headers["content-type"].split(";")[0] == ("text/html" if is_page else "application/json")
    assert ("there is no such page" in answer.text) == is_page
    assert api.http.post(path, headers={"Accept": accept}).json()["error"]["code"] == "not_found"
