"""Sessions of the dashboard: what they open, when they end, and how their cookie travels, also through a proxy."""

import contextlib
import hashlib
import re
import socket
import threading
from collections.abc import Iterator

import httpx2
import pytest
from sqlalchemy import func, select, text, update

from omni_jobs.database.clock import now
from omni_jobs.database.database import Database
from omni_jobs.database.tables import SessionRow
from omni_jobs.errors import ConfigError, Unauthenticated
from omni_jobs.settings import Settings, read_settings
from omni_jobs.tenants.key_store import ApiKeys, NewApiKey, digest_of
from omni_jobs.tenants.sessions import LONGEST_S, MOST_OF_A_KEY, Sessions, session_digest
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"auth": "keys", "allowed_hosts": ("jobs.example.com",)})


@pytest.fixture
def keys(database: Database) -> ApiKeys:
    for tenant in ("acme", "globex"):
        Tenants(database).create(tenant)
    return ApiKeys(database)


@pytest.fixture
def api(settings: Settings, keys: ApiKeys) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


def bearer(key: NewApiKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.key}"}


def begun(http: httpx2.Client, key: NewApiKey, **headers: str) -> str:
    """Sign in, and return the Set-Cookie header; the client itself keeps no cookie."""
    answer = http.post("/v1/session", headers={**bearer(key), **headers})
    assert answer.status_code == 204, answer.text
    http.cookies.clear()
    return str(answer.headers["set-cookie"])


def cookie_of(set_cookie: str) -> dict[str, str]:
    return {"Cookie": set_cookie.partition(";")[0]}


def status_with(http: httpx2.Client, cookie: dict[str, str]) -> int:
    return int(http.get("/v1/status", headers=cookie).status_code)


# What it opens


def test_a_session_of_any_scope_does_nothing_by_the_routes_of_the_api(
    api: ApiServer, keys: ApiKeys, database: Database
) -> None:
    key = keys.create("acme", ["admin"])
    job_id = api.http.post("/v1/jobs", json=ECHO, headers=bearer(key)).json()["id"]
    set_cookie = begun(api.http, key)
    assert all(part in set_cookie for part in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert key.key[5:] not in set_cookie
    session_id = re.fullmatch(r"omni_jobs_session=([A-Za-z0-9_-]{43})", set_cookie.partition(";")[0])
    assert session_id is not None
    [row] = database.read(lambda tx: tx.execute(select(SessionRow.digest, SessionRow.key_id)).all())
    assert row == (hashlib.sha256(session_id[1].encode()).hexdigest(), key.id)
    session = cookie_of(set_cookie)
    assert api.http.get(f"/v1/jobs/{job_id}", headers=session).status_code == 200
    assert api.http.get("/v1/status", headers=session).json()["jobs"]["queued"] == 1
    for method, path in (
        ("POST", "/v1/jobs"),
        ("POST", "/v1/jobs/bulk"),
        ("POST", f"/v1/jobs/{job_id}/cancel"),
        ("POST", f"/v1/jobs/{job_id}/retry"),
        ("DELETE", f"/v1/jobs/{job_id}"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/pipelines"),
        ("GET", "/v1/estimates"),
        ("POST", "/v1/pipelines/echo/stages/first/pause"),
        ("POST", f"/v1/jobs/{job_id}/advance"),
        ("POST", "/v1/workers/w/drain"),
        ("POST", "/v1/session"),
    ):
        assert api.http.request(method, path, headers=session).status_code == 401, path
    as_a_key = {"Authorization": f"Bearer {session_id[1]}"}
    assert api.http.get("/v1/status", headers=as_a_key).status_code == 401


def test_what_is_no_session_opens_nothing(api: ApiServer, keys: ApiKeys) -> None:
    key = keys.create("acme", ["read"])
    mine, other = (begun(api.http, key).partition(";")[0] for _ in range(2))
    assert mine != other  # a new id with each sign-in
    planted = "omni_jobs_session=" + "A" * 43
    wrong = [
        planted,
        "omni_jobs_session=",
        "omni_jobs_session",
        f"omni_jobs_session={key.key}",
        f"omni_jobs_key={key.key}",
        f"__Host-{mine}",  # of another scheme
        f"{mine}x",
        f'omni_jobs_session="{mine.partition("=")[2]}"',
        mine.replace("omni_jobs_session", "OMNI_JOBS_SESSION"),
        f"{mine}; {other}",  # one of them may be planted
        f"{planted}; {mine}",
        "omni_jobs_session=" + "é" * 43,
        "omni_jobs_session=" + "A" * 30_000,
    ]
    for cookie in wrong:
        headers = {"Cookie": cookie.encode()}
        assert api.http.get("/v1/status", headers=headers).status_code == 401, cookie  # type: ignore[arg-type]
    assert status_with(api.http, {"Cookie": f"a=b; {mine} ; c=d"}) == 200
    # What a browser brings at its sign-in is not what it gets.
    answer = api.http.post("/v1/session", headers={**bearer(key), "Cookie": planted})
    api.http.cookies.clear()
    assert planted not in answer.headers["set-cookie"]
    assert status_with(api.http, {"Cookie": planted}) == 401


def test_a_session_may_do_what_its_key_may(database: Database, keys: ApiKeys) -> None:
    sessions = Sessions(database)
    for scopes in (["read"], ["read", "submit"], ["admin"], ["read", "priority"]):
        key = keys.create("acme", scopes)
        digest = session_digest(sessions.begin(digest_of(key.key) or "")) or ""
        caller, _ = sessions.find_all([digest])[digest]
        assert (caller.tenant, caller.scopes, caller.operates) == ("acme", frozenset(scopes), "admin" in scopes)


def test_the_session_of_an_operator_sees_all_load_and_of_a_tenant_its_own(api: ApiServer, keys: ApiKeys) -> None:
    operator, reader = keys.create("globex", ["admin"]), keys.create("globex", ["read"])
    submitter = keys.create("acme", ["submit"])
    assert api.http.post("/v1/jobs", json=ECHO, headers=bearer(submitter)).status_code == 202
    queued = [
        api.http.get("/v1/status", headers=cookie_of(begun(api.http, key))).json()["jobs"]["queued"]
        for key in (operator, reader)
    ]
    assert queued == [1, 0]
    refused = api.http.post("/v1/session", headers=bearer(submitter))
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)


@pytest.mark.parametrize("auth", ["off", "proxy"])
def test_without_keys_there_is_no_session(settings: Settings, keys: ApiKeys, auth: str) -> None:
    key = keys.create("acme", ["read"])
    header = {"tenant_header": "X-Tenant"} if auth == "proxy" else {}
    with serve(settings.model_copy(update={"auth": auth, **header})) as api:
        for headers in ({}, bearer(key), {"Authorization": "Basic dXNlcjpwYXNz"}):
            answer = api.http.post("/v1/session", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
            assert auth in answer.json()["error"]["message"]
            assert "set-cookie" not in answer.headers
        assert api.http.delete("/v1/session").status_code == 204


# When it ends


def test_a_session_ends_at_sign_out(api: ApiServer, keys: ApiKeys) -> None:
    key = keys.create("acme", ["read"])
    left, kept = (cookie_of(begun(api.http, key)) for _ in range(2))
    assert [status_with(api.http, cookie) for cookie in (left, kept)] == [200, 200]
    ended = api.http.delete("/v1/session", headers=left)
    assert (ended.status_code, 'omni_jobs_session=""' in ended.headers["set-cookie"]) == (204, True)
    assert [status_with(api.http, cookie) for cookie in (left, kept)] == [401, 200]
    assert api.http.get("/v1/status", headers=bearer(key)).status_code == 200
    for cookie in (left, {"Cookie": "omni_jobs_session=x"}, {}):
        assert api.http.delete("/v1/session", headers=cookie).status_code == 204


def test_a_session_counts_while_its_key_does(database: Database, keys: ApiKeys) -> None:
    sessions = Sessions(database)
    revoked, deleted = keys.create("acme", ["read"]), keys.create("globex", ["read"])
    short = keys.create("acme", ["read"], expires_in_s=60)
    began = {key.id: sessions.begin(digest_of(key.key) or "") for key in (revoked, deleted, short)}
    digests = {key_id: session_digest(session_id) or "" for key_id, session_id in began.items()}
    found = sessions.find_all([*digests.values(), "0" * 64])
    lives = {key_id: found[digest] for key_id, digest in digests.items()}
    assert len(found) == 3
    assert 30 < lives[short.id][1] <= 60
    assert LONGEST_S - 30 < lives[revoked.id][1] <= LONGEST_S
    keys.revoke(revoked.id)
    Tenants(database).delete("globex")
    expire = text("UPDATE api_keys SET expires_at = 1 WHERE id = :id")
    database.run(lambda tx: tx.execute(expire, {"id": short.id}))
    assert sessions.find_all([*digests.values()]) == {}
    for key in (revoked, deleted, short):
        with pytest.raises(Unauthenticated):
            sessions.begin(digest_of(key.key) or "")


def test_ended_sessions_are_pruned_and_a_key_has_few(database: Database, keys: ApiKeys) -> None:
    sessions, key = Sessions(database), keys.create("acme", ["read"])
    ids = [sessions.begin(digest_of(key.key) or "") for _ in range(MOST_OF_A_KEY + 3)]
    known = sessions.find_all([session_digest(each) or "" for each in ids])
    found = [session_digest(each) in known for each in ids]
    assert found == [False] * 3 + [True] * MOST_OF_A_KEY
    last = session_digest(ids[-1])
    database.run(lambda tx: tx.execute(update(SessionRow).where(SessionRow.digest == last).values(ends_at=now())))
    assert sessions.find_all([last or ""]) == {}
    assert (sessions.prune(), sessions.prune()) == (1, 0)
    count = select(func.count()).select_from(SessionRow)
    assert database.read(lambda tx: tx.execute(count).scalar_one()) == MOST_OF_A_KEY - 1


# How its cookie travels


@contextlib.contextmanager
def proxy(api: ApiServer, source: str) -> Iterator[str]:
    """A proxy that comes to the API from an address of this machine, and adds what proxies with TLS add."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pass_on(client: socket.socket) -> None:
        with client, socket.create_connection((api.host, api.port), source_address=(source, 0)) as server:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(65_536)
            line, _, rest = head.partition(b"\r\n")
            added = b"X-Forwarded-Proto: https\r\nX-Forwarded-For: 192.0.2.9\r\nConnection: close\r\n"
            rest = re.sub(rb"(?i)connection: [^\r]*\r\n", b"", rest)
            server.sendall(line + b"\r\n" + added + rest)
            while chunk := server.recv(65_536):
                client.sendall(chunk)

    def run() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=pass_on, args=(client,), daemon=True).start()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def seen(url: str, key: NewApiKey, host: str) -> tuple[bool, bool]:
    """Sign in by a URL. Return whether the cookie is Secure and whether https is made a must; the session opens."""
    with httpx2.Client(base_url=url, trust_env=False) as http:
        answer = http.post("/v1/session", headers={**bearer(key), "Host": host})
        http.cookies.clear()
        cookie = answer.headers["set-cookie"]
        assert ("Secure" in cookie) == cookie.startswith("__Host-")
        assert http.get("/v1/status", headers={**cookie_of(cookie), "Host": host}).status_code == 200
        return "Secure" in cookie, "strict-transport-security" in answer.headers


@pytest.mark.parametrize(
    ("given", "source", "host", "expected"),
    [
        # No proxy is known at 127.0.0.2: what it says counts for nothing, and only loopback hosts go without https.
        ({}, "127.0.0.2", "jobs.example.com", (True, False)),
        ({}, "127.0.0.2", "203.0.113.7:8000", (True, False)),
        ({}, "127.0.0.2", "localhost:8000", (False, False)),
        ({}, "127.0.0.2", "127.9.9.9", (False, False)),
        ({}, "127.0.0.2", "[::1]:8000", (False, False)),
        ({}, "127.0.0.1", "127.0.0.1:8000", (True, True)),
        ({"trusted_proxies": ("127.0.0.2",)}, "127.0.0.2", "127.0.0.1:8000", (True, True)),
        ({"trusted_proxies": ("127.0.0.0/8",)}, "127.0.0.2", "jobs.example.com", (True, True)),
        ({"trusted_proxies": ("10.0.0.0/8",)}, "127.0.0.1", "127.0.0.1", (False, False)),
        ({"trusted_proxies": ("*",)}, "127.0.0.2", "localhost", (True, True)),
        ({"public_url": "https://studio.example.com"}, "127.0.0.2", "studio.example.com", (True, True)),
        ({"public_url": "http://192.0.2.7:8000"}, "127.0.0.2", "192.0.2.7:8000", (False, False)),
        ({"public_url": "http://192.0.2.7:8000"}, "127.0.0.2", "192.0.2.8:8000", (True, False)),
    ],
)
def test_a_cookie_needs_https_unless_the_host_is_this_machine(
    settings: Settings, keys: ApiKeys, given: dict[str, object], source: str, host: str, expected: tuple[bool, bool]
) -> None:
    key = keys.create("acme", ["read"])
    with serve(settings.model_copy(update=given)) as api, proxy(api, source) as url:
        assert seen(url, key, host) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("TRUSTED_PROXIES", value)
            for value in ("proxy", "10.0.0.1/8", "*,10.0.0.1", "[::1]", "10.0.0.256", "1/2/3")
        ),
        *(
            ("PUBLIC_URL", value)
            for value in ("jobs.example.com", "ftp://a", "https://", "https://[::1", "https://a:0")
        ),
        *(
            ("PUBLIC_URL", value)
            for value in ("https://u:planted@a", "https://a?b", "https://a b", "https://a:99999", "")
        ),
    ],
)
def test_a_wrong_proxy_or_url_names_its_setting(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"OMNI_JOBS_{name}", value)
    with pytest.raises(ConfigError) as error:
        read_settings()
    assert error.value.field == f"OMNI_JOBS_{name}"
    assert "planted" not in str(error.value)
