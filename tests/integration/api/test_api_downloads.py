"""Downloads: the name under which a client saves an artifact, and redirects to the S3 service that has it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import httpx2
import pytest

from omni_jobs.database.database import Database
from omni_jobs.errors import ObjectCorrupt, ServerUnavailable
from omni_jobs.jobs import Completion, NewWorker, StoredArtifact
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, artifact_key
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from omni_jobs.views import ArtifactView
from tests.both_clients import KINDS, Kind, of_kind
from tests.integration.api_server import ApiServer, checked_error, serve
from tests.services.fault_proxy import FaultProxy
from tests.services.seaweedfs import SeaweedFS

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
SOUND = bytes(range(256)) * 5000
HTML = b"<script>alert(1)</script>"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


@pytest.fixture
def on_s3(settings: Settings, seaweedfs: SeaweedFS) -> Settings:
    return settings.model_copy(
        update={
            "storage_url": f"s3://{seaweedfs.bucket}/{uuid4().hex}",
            "s3_endpoint_url": seaweedfs.endpoint_url,
            "download_url_s": 120,
        }
    )


@pytest.fixture
def redirecting(on_s3: Settings) -> Iterator[ApiServer]:
    with serve(on_s3) as server:
        yield server


@pytest.fixture
def follower(redirecting: ApiServer) -> Iterator[httpx2.Client]:
    """A client that follows redirects, as curl -L and browsers do."""
    url = f"http://{redirecting.host}:{redirecting.port}"
    with httpx2.Client(base_url=url, follow_redirects=True, trust_env=False, timeout=30) as client:
        yield client


def made(
    api: ApiServer, name: str, data: bytes, media_type: str = "audio/wav", **headers: str
) -> tuple[str, ObjectRef]:
    """The URL of a finished job's artifact, and its object's ref."""
    job_id = api.http.post("/v1/jobs", json=ECHO, headers=headers).json()["id"]
    file = api.services.pipelines["echo"]
    for stage in ("first", "second"):
        api.services.jobs.register_worker(NewWorker(stage, stage, file.stage_id(stage), "a", 1, 5, file.version), 60.0)
        [claim] = api.services.jobs.claim(stage, 1).claims
        stored = []
        if stage == "second":
            ref = api.services.store.put(artifact_key(job_id, stage, 1, name), [data], media_type=media_type)
            stored = [StoredArtifact(name, media_type, ref)]
        api.services.jobs.report([Completion(claim.stage_run_id, 1, stage, artifacts=stored)])
    return f"/v1/jobs/{job_id}/artifacts/{name}", ref


def redirect_of(answer: httpx2.Response) -> str:
    """The URL of a redirect, which nobody keeps and which has no body."""
    assert (answer.status_code, answer.content) == (307, b"")
    assert answer.headers["cache-control"] == "no-store"
    assert "etag" not in answer.headers
    return str(answer.headers["location"])


# Names


def test_a_download_has_the_name_that_the_client_asks_for(api: ApiServer) -> None:
    url, _ = made(api, "audio.wav", SOUND)
    for asked, disposition in (
        ("", 'attachment; filename="audio.wav"'),
        ("story", 'attachment; filename="story.wav"'),
        ("灯台.wav", "attachment; filename=\"__.wav\"; filename*=UTF-8''%E7%81%AF%E5%8F%B0.wav"),
        ('x"; filename="y.exe', "attachment; filename=\"x__ filename__y.exe.wav\"; filename*=UTF-8''"
         "x%22%3B%20filename%3D%22y.exe.wav"),
    ):  # fmt: skip
        for headers in ({}, {"Range": "bytes=0-9"}):
            answer = api.http.get(url, params={"download": asked}, headers=headers)
            assert answer.headers["content-disposition"] == disposition
            assert answer.content == (SOUND[:10] if headers else SOUND)
    assert api.http.get(url).headers["content-disposition"] == 'inline; filename="audio.wav"'


@pytest.mark.parametrize("name", ["../x", "a\u202ecod.wav", "a\0", "a\r\nSet-Cookie: x=y", "x" * 10_000, "..", "a\\b"])
def test_a_hostile_name_is_refused_by_its_field(api: ApiServer, name: str) -> None:
    url, _ = made(api, "audio.wav", SOUND)
    query = "download=" + "".join(f"%{byte:02x}" for byte in name.encode())
    answer = api.http.get(f"{url}?{query}")
    assert (answer.status_code, answer.headers.get("set-cookie")) == (422, None)
    assert checked_error(answer.status_code, answer.headers, answer.content)["field"] == "download"
    assert api.http.get(f"{url}?download=a&download=b").status_code == 422


# Caches


def test_a_browser_asks_whether_it_still_has_the_artifact_which_a_retry_replaces(api: ApiServer) -> None:
    url, ref = made(api, "audio.wav", SOUND)
    first = api.http.get(url)
    assert first.headers["cache-control"] == "private, no-cache"
    its = {"If-None-Match": first.headers["etag"]}
    same = api.http.get(url, headers=its)
    assert (same.status_code, same.headers["cache-control"]) == (304, "private, no-cache")
    job_id = url.split("/")[3]
    assert api.http.post(f"/v1/jobs/{job_id}/retry?from_stage=second").status_code == 200
    [claim] = api.services.jobs.claim("second", 1).claims
    key = artifact_key(job_id, "second", claim.attempt, "audio.wav")
    again = StoredArtifact("audio.wav", "audio/wav", api.services.store.put(key, [SOUND[::-1]]))
    api.services.jobs.report([Completion(claim.stage_run_id, claim.attempt, "second", artifacts=[again])])
    answer = api.http.get(url, headers=its)
    assert (answer.status_code, answer.content == SOUND[::-1]) == (200, True)
    assert answer.headers["etag"] != f'"{ref.digest}"'


# Redirects


def test_a_redirect_leads_to_the_whole_a_range_and_the_head(redirecting: ApiServer, follower: httpx2.Client) -> None:
    url, _ = made(redirecting, "audio.wav", SOUND)
    location = redirect_of(redirecting.http.get(url))
    assert location.startswith(f"{redirecting.services.settings.s3_endpoint_url}/")
    assert parse_qs(urlsplit(location).query)["X-Amz-Expires"] == ["120"]
    whole = follower.get(url)
    assert (whole.status_code, whole.content == SOUND) == (200, True)
    part = follower.get(url, headers={"Range": "bytes=1000000-1000009"})
    assert (part.status_code, part.content) == (206, SOUND[1_000_000:1_000_010])
    assert part.headers["content-range"] == f"bytes 1000000-1000009/{len(SOUND)}"
    head = follower.head(url)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(SOUND)))
    for answer in (whole, part, head):
        assert answer.headers["content-type"] == "audio/wav"
        assert answer.headers["content-disposition"] == 'inline; filename="audio.wav"'
    named = follower.get(url, params={"download": "灯台"})
    assert named.headers["content-disposition"].endswith("filename*=UTF-8''%E7%81%AF%E5%8F%B0.wav")
    beyond = follower.get(url, headers={"Range": "bytes=9999999-"})
    assert beyond.status_code == 416


def test_what_a_browser_could_run_leaves_the_store_as_bytes_to_be_saved(
    redirecting: ApiServer, follower: httpx2.Client
) -> None:
    url, _ = made(redirecting, "page.html", HTML, "text/html")
    answer = follower.get(url)
    assert answer.content == HTML
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="page.html"'


def test_who_may_not_have_an_artifact_gets_no_redirect(on_s3: Settings, sqlite_url: str) -> None:
    database = Database(sqlite_url)
    for tenant in ("acme", "globex"):
        Tenants(database).create(tenant)
    ours, theirs = (
        {"Authorization": f"Bearer {ApiKeys(database).create(tenant, ['submit', 'read']).key}"}
        for tenant in ("acme", "globex")
    )
    with serve(on_s3.model_copy(update={"auth": "keys"})) as api:
        url, _ = made(api, "audio.wav", SOUND, **ours)
        for headers, status in (({}, 401), (theirs, 404)):
            answer = api.http.get(url, headers=headers)
            assert (answer.status_code, "location" in answer.headers) == (status, False)
        with httpx2.Client(base_url=api.http.base_url, follow_redirects=True, headers=ours) as follower:
            assert follower.get(url).content == SOUND, "the key does not go to the store, which would refuse it"
        assert api.http.get(url.replace("audio", "other"), headers=ours).status_code == 404


def test_what_the_api_answers_by_itself_beside_redirects(redirecting: ApiServer) -> None:
    url, ref = made(redirecting, "image.png", SOUND, "image/png")
    assert redirecting.http.get(url, headers={"If-None-Match": f'"{ref.digest}"'}).status_code == 304
    for use in ("image", "audio", "video", "empty"):  # by the dashboard, whose policy allows no other server
        shown = redirecting.http.get(url, headers={"Sec-Fetch-Dest": use})
        assert (shown.status_code, shown.content) == (200, SOUND), use
    assert redirecting.http.get(url, params={"download": "a/b"}).status_code == 422


def test_clients_are_led_to_the_endpoint_that_they_reach(on_s3: Settings, seaweedfs: SeaweedFS) -> None:
    with (
        FaultProxy(seaweedfs.endpoint_url, http=True) as proxy,
        serve(on_s3.model_copy(update={"s3_public_endpoint_url": proxy.url})) as api,
    ):
        url, _ = made(api, "audio.wav", SOUND)
        location = redirect_of(api.http.get(url))
        assert location.startswith(f"{proxy.url}/")
        assert httpx2.get(location).content == SOUND


def test_no_line_of_a_log_has_the_url(redirecting: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for name in ("omni_jobs", "uvicorn", "uvicorn.access", "uvicorn.error"):
        caplog.set_level(logging.DEBUG, name)
    url, _ = made(redirecting, "audio.wav", SOUND)
    location = redirect_of(redirecting.http.get(url))
    [signature] = parse_qs(urlsplit(location).query)["X-Amz-Signature"]
    texts = [record.getMessage() for record in caplog.records]
    assert texts
    assert not [text for text in texts if signature in text]


@pytest.mark.parametrize("which", KINDS)
def test_our_client_follows_redirects_and_checks_what_it_gets(
    redirecting: ApiServer, tmp_path: Path, which: Kind
) -> None:
    url, ref = made(redirecting, "audio.wav", SOUND)
    with of_kind(which, str(redirecting.http.base_url), api_key="a-key") as client:
        job = client.get(url.split("/")[3])
        assert [ArtifactView.model_validate(each).name for each in job.artifacts] == ["audio.wav"]
        assert client.artifact(job, "audio.wav") == SOUND
        redirecting.services.store.put(ref.key, [SOUND[:-1] + b"?"])
        with pytest.raises(ObjectCorrupt):
            client.save_artifact(job, "audio.wav", tmp_path / "audio.wav")
        assert not (tmp_path / "audio.wav").exists()
        redirecting.services.store.delete([ref.key])
        with pytest.raises(ServerUnavailable, match=r"HTTP 404 from the object store at 127\.0\.0\.1") as raised:
            client.artifact(job, "audio.wav")
        assert "Signature" not in str(raised.value)
