"""The pages of tenants and keys over HTTP: what is made, set and revoked there, and what a tenant's key may not."""

import re
from collections.abc import Iterator

import pytest

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants, TenantView
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.integration.dashboard.visits import Bearer, sent, with_keys

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory, valkey_server: str) -> Iterator[ApiServer]:
    """A server that nothing changes, with the tenant acme."""
    directory = tmp_path_factory.mktemp("shared")
    url = f"sqlite:///{directory}/jobs.db"
    database = Database(url)
    database.migrate()
    Tenants(database).create("acme")
    database.close()
    with serve(server_settings(directory, valkey_server, database_url=url)) as server:
        yield server


def tenant(api: ApiServer, name: str) -> TenantView:
    [found] = [each for each in Tenants(api.services.db).all() if each.name == name]
    return found


def key_in(html: str) -> str:
    [key] = re.findall(r"omni_[A-Za-z0-9_-]{43}", html)
    return str(key)


def test_a_tenant_is_made_and_its_weight_and_limits_are_set(api: ApiServer) -> None:
    made = sent(api, "/tenants", ("name", "acme"), ("weight", "2"))
    assert (made.status_code, made.headers["location"]) == (303, "/tenants/acme")
    assert tenant(api, "acme").weight == 2
    fields = [("weight", "2"), ("was_weight", "2"), ("queued_jobs", "30"), ("was_queued_jobs", ""), ("media_bytes", "")]
    assert sent(api, "/tenants/acme/limits", *fields).status_code == 303
    Tenants(api.services.db).set("acme", 5, {"media_bytes": 7})  # by another operator, while the page is open
    assert (
        sent(api, "/tenants/acme/limits", *fields[:2], ("queued_jobs", ""), ("was_queued_jobs", "30")).status_code
        == 303
    )
    changed = tenant(api, "acme")
    assert (changed.weight, changed.limits.model_dump(exclude_none=True)) == (5, {"media_bytes": 7})
    page = api.http.get("/tenants/acme").text
    assert 'name="media_bytes" inputmode="numeric" maxlength="16" value="7"' in page


@pytest.mark.parametrize(
    ("path", "fields", "status", "field"),
    [
        ("/tenants", [("name", "a b")], 422, "name"),
        ("/tenants", [("name", "acme")], 409, "name"),
        ("/tenants", [("name", "new"), ("weight", "x")], 422, "weight"),
        ("/tenants", [("name", "new"), ("weight", "1e9")], 422, "weight"),
        ("/tenants/acme/limits", [("weight", "0")], 422, "weight"),
        ("/tenants/acme/limits", [("queued_jobs", "-1")], 422, "queued_jobs"),
        ("/tenants/acme/limits", [("requests_per_minute", "0")], 422, "requests_per_minute"),
        ("/tenants/none/limits", [("queued_jobs", "1")], 404, "name"),
        ("/tenants/acme/keys", [], 422, "scopes"),
        ("/tenants/acme/keys", [("scope", "everything")], 422, "scopes"),
        ("/tenants/acme/keys", [("scope", "read"), ("days", "soon")], 422, "days"),
        ("/tenants/acme/keys", [("scope", "read"), ("days", "99999")], 422, "expires_in"),
        ("/tenants/acme/keys", [("scope", "read"), ("label", "a\u202eb")], 422, "name"),
        ("/tenants/%00/keys", [("scope", "read")], 404, "name"),
        ("/keys/key-0/revoke", [], 404, "key_id"),
    ],
)
def test_a_wrong_form_changes_nothing_and_names_its_field(
    shared_api: ApiServer, path: str, fields: list[tuple[str, str]], status: int, field: str
) -> None:
    answer = sent(shared_api, path, *fields)
    assert (answer.status_code, f"<bdi>{field}</bdi>" in answer.text) == (status, True), answer.text
    assert [each.name for each in Tenants(shared_api.services.db).all()] == ["acme"]
    assert tenant(shared_api, "acme").limits.model_dump(exclude_none=True) == {}
    assert list(ApiKeys(shared_api.services.db).all()) == []


def test_a_key_is_shown_once_works_and_is_revoked_after_a_question(settings: Settings) -> None:
    with with_keys(settings) as (api, by):
        fields = [("scope", "submit"), ("scope", "read"), ("label", MARKUP), ("days", "90")]
        made = sent(api, "/tenants/acme/keys", *fields, by=by["operator"])
        key = key_in(made.text)
        assert (made.status_code, made.headers["cache-control"], "etag" in made.headers) == (200, "no-store", False)
        assert api.http.post("/v1/jobs", json=ECHO, headers=bearer(key)).status_code == 202
        page = api.http.get("/tenants/acme", headers=by["operator"]).text
        assert (key in page, key[:9] in page, MARKUP in page) == (False, True, False)
        [view] = [each for each in ApiKeys(api.services.db).all("acme") if each.hint == key[:9]]
        question = api.http.get(f"/keys/{view.id}/revoke", headers=by["operator"])
        assert "This cannot be undone." in question.text
        for _ in range(2):
            gone = sent(api, f"/keys/{view.id}/revoke", by=by["operator"])
            assert (gone.status_code, gone.headers["location"]) == (303, "/tenants/acme")
        [view] = [each for each in ApiKeys(api.services.db).all("acme") if each.id == view.id]
        assert view.revoked_at is not None


def bearer(key: str) -> Bearer:
    return {"Authorization": f"Bearer {key}"}


def test_an_operators_key_sees_its_own_tenant_alone_and_lifts_no_limit(settings: Settings) -> None:
    with with_keys(settings) as (api, by):
        [theirs] = ApiKeys(api.services.db).all("globex")
        page = api.http.get("/tenants", headers=by["operator"]).text
        assert ("acme" in page, "globex" in page) == (True, False)
        assert "<form" not in api.http.get("/fragments/tenants", headers=by["operator"]).text
        assert "A tenant's key does not change them" in api.http.get("/tenants/acme", headers=by["operator"]).text
        for path in ("/tenants/globex", f"/keys/{theirs.id}/revoke"):
            assert api.http.get(path, headers=by["operator"]).status_code == 404, path
        for path in ("/tenants/globex/keys", f"/keys/{theirs.id}/revoke"):
            assert sent(api, path, ("scope", "read"), by=by["operator"]).status_code == 404, path
        for path in ("/tenants", "/tenants/acme/limits", "/tenants/globex/limits"):
            fields = [("name", "new"), ("queued_jobs", "9"), ("weight", "9")]
            assert sent(api, path, *fields, by=by["operator"]).status_code == 403, path
        assert [(each.name, each.weight) for each in Tenants(api.services.db).all()] == [("acme", 1.0), ("globex", 1.0)]
        assert [each.revoked_at for each in ApiKeys(api.services.db).all("globex")] == [None]
        assert len(ApiKeys(api.services.db).all()) == 3
