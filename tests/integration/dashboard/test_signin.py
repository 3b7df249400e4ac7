"""The sign-in of the dashboard over HTTP: who gets in, by which pages, and where it leads."""

from collections.abc import Iterator

import pytest

from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from tests.integration.api_server import ApiServer, serve

OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings.model_copy(update={"auth": "keys"})


@pytest.fixture
def api(settings: Settings, keys: ApiKeys) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


def form(**fields: str) -> dict[str, tuple[None, str]]:
    return {name: (None, value) for name, value in fields.items()}


def test_a_key_with_the_scope_read_begins_a_session_and_is_led_back(api: ApiServer, keys: ApiKeys) -> None:
    key = keys.create("acme", ["read"]).key
    answer = api.http.post("/signin", files=form(key=f" {key} ", to="/v1/status?x=1"), headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/v1/status?x=1")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert key[5:] not in answer.headers["set-cookie"]
    assert api.http.get("/v1/status").status_code == 200  # by the cookie
    gone = api.http.post("/signout", files=form(x=""), headers=OWN)
    assert (gone.status_code, gone.headers["location"]) == (303, "/signin")
    assert api.http.get("/v1/status").status_code == 401


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_a_sign_in_leads_nowhere_else(api: ApiServer, keys: ApiKeys, to: str) -> None:
    key = keys.create("acme", ["read"]).key
    answer = api.http.post("/signin", files=form(key=key, to=to), headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize("given", ["", "omni_" + "x" * 43, "clé", "a\nb", "x" * 4000])
def test_what_is_no_key_is_told_so_on_the_page(api: ApiServer, given: str) -> None:
    answer = api.http.post("/signin", files=form(key=given), headers=OWN)
    assert answer.status_code in (401, 422)
    assert answer.headers["content-type"].startswith("text/html")
    assert 'role="alert"' in answer.text
    assert "set-cookie" not in answer.headers


def test_a_key_that_may_not_read_gets_no_session(api: ApiServer, keys: ApiKeys) -> None:
    answer = api.http.post("/signin", files=form(key=keys.create("acme", ["submit"]).key), headers=OWN)
    assert (answer.status_code, "scope read" in answer.text, "set-cookie" in answer.headers) == (403, True, False)


@pytest.mark.parametrize("sent", [{}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_only_a_page_of_this_server_signs_in_or_out(api: ApiServer, keys: ApiKeys, sent: dict[str, str]) -> None:
    key = keys.create("acme", ["read"]).key
    for path in ("/signin", "/signout"):
        answer = api.http.post(path, files=form(key=key), headers=sent)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False), path


def test_static_files_are_kept_for_ever_under_the_name_of_their_version(api: ApiServer) -> None:
    page = api.http.get("/signin").text
    path = page.partition('<script src="')[2].partition('"')[0]
    file = api.http.get(path)
    assert (file.status_code, file.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
    assert file.headers["content-type"].startswith("text/javascript")
    version = path.split("/")[2]
    other = api.http.get(path.replace(version, "0" * 16))
    assert (other.content == file.content, other.headers["cache-control"]) == (True, "no-cache")
    known = api.http.get(path.replace(version, "0" * 16), headers={"If-None-Match": other.headers["etag"]})
    assert known.status_code == 304
    for wrong in ("../vendor.json", "%2e%2e/vendor.json", "/etc/passwd", "vendor"):
        assert api.http.get(f"/static/{version}/{wrong}").status_code == 404, wrong


def test_without_keys_there_is_no_sign_in(settings: Settings) -> None:
    with serve(settings.model_copy(update={"auth": "off"})) as api:
        answer = api.http.get("/signin")
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
