"""The HTTP API over a real socket, on SQLite and PostgreSQL, with a real Valkey."""

import json
import logging
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from omni_jobs import errors as error_tree
from omni_jobs.api.examples import EVENTS, JOB, SUBMITS
from omni_jobs.errors import ModelError, OmniJobsError, OutOfMemory
from omni_jobs.jobs import Claim, Completion, Failure, NewWorker, ProgressReport, StoredArtifact
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectRef, artifact_key, job_prefix
from omni_jobs.views import EventView, JobView
from tests.integration.api_server import ApiServer, checked_error, serve
from tests.integration.job_steps import fail
from tests.oracles import samples

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture
def settings(settings: Settings, tiny_checkpoint: Path) -> Settings:
    return settings.model_copy(update={"models": {"qwen2_5_omni": tiny_checkpoint}, "max_body_bytes": 1 << 20})


def submitted(api: ApiServer, **body: Any) -> JobView:
    answer = api.http.post("/v1/jobs", json={**ECHO, **body})
    assert answer.status_code == 202, answer.text
    return JobView.model_validate(answer.json())


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    return checked_error(answer.status_code, answer.headers, answer.content)


def claimed(api: ApiServer, queue: str = "echo.first", worker: str = "w") -> Claim:
    """Claim the next stage run of a queue's stage, as a worker of that stage would."""
    pipeline, stage = queue.split(".")
    file = api.services.pipelines[pipeline]
    new = NewWorker(worker, f"{queue}-1", file.stage_id(stage), "host-a", 1, 5, file.version)
    api.services.jobs.register_worker(new, 60.0)
    [claim] = api.services.jobs.claim(worker, 1).claims
    return claim


# A job's life


def test_submit_and_get(api: ApiServer) -> None:
    answer = api.http.post("/v1/jobs", json={**ECHO, "metadata": {"ключ": "值 🙂"}, "seed": 7})
    assert answer.status_code == 202
    job = JobView.model_validate(answer.json())
    assert answer.headers["location"] == f"/v1/jobs/{job.id}"
    assert (job.status, job.pipeline, job.seed, job.metadata) == ("queued", "echo", 7, {"ключ": "值 🙂"})
    assert [(stage.name, stage.status) for stage in job.stages] == [("first", "queued"), ("second", "pending")]
    again = api.http.get(answer.headers["location"])
    assert again.status_code == 200
    read = JobView.model_validate(again.json())
    assert read.waiting is not None
    assert (read.waiting.reason, read.waiting.stage, read.waiting.pipeline_version) == ("no_worker", "first", "1")
    assert [listed["waiting"] for listed in api.http.get("/v1/jobs").json()["jobs"]] == [again.json()["waiting"]]
    assert api.http.get("/v1/status").json()["recent"][0]["waiting"] == again.json()["waiting"]
    file = api.services.pipelines["echo"]
    api.services.jobs.register_worker(NewWorker("w", "w", file.stage_id("first"), "h", 1, 1, file.version), 60.0)
    read = JobView.model_validate(api.http.get(answer.headers["location"]).json())
    assert read.waiting is not None
    assert (read.waiting.reason, read.model_copy(update={"waiting": None})) == ("turn", job)


def test_a_submit_rings_for_the_first_stage(api: ApiServer) -> None:
    job = submitted(api)
    with redis.Redis.from_url(api.services.settings.broker_url.get_secret_value()) as broker:
        assert broker.brpop(["echo@1.first"], timeout=60) is not None, "no doorbell came"
    assert set(api.services.broker.depths().values()) == {0}
    assert claimed(api).job_id == job.id


def test_media_are_stored_and_the_request_refers_to_them(api: ApiServer) -> None:
    clip, picture = samples.wav(), samples.image()
    content = [samples.audio_part(clip), samples.image_part(picture), {"type": "text", "text": "什么？"}]
    job = submitted(api, model="qwen2_5_omni", messages=[{"role": "user", "content": content}])
    claim = claimed(api, "qwen2_5_omni.thinker")
    assert claim.job_id == job.id
    assert claim.request["messages"][0]["content"] == [
        {"type": "audio", "media": 0},
        {"type": "image", "media": 1},
        {"type": "text", "text": "什么？"},
    ]
    assert [medium["media_type"] for medium in claim.media] == ["audio/wav", "image/png"]
    keys = {stored.key for stored in api.services.store.list("jobs/")}
    assert keys == {f"{job_prefix(job.id)}inputs/0", f"{job_prefix(job.id)}inputs/1"}
    stored = ObjectRef(**{name: claim.media[0][name] for name in ("key", "size", "digest")})
    assert api.services.store.read(stored, max_bytes=len(clip)) == clip


def test_progress_failure_and_errors_show(api: ApiServer) -> None:
    job = submitted(api)
    claim = claimed(api)
    jobs = api.services.jobs
    jobs.report_progress([ProgressReport(claim.stage_run_id, 1, 3, 10, "steps", "مرحبا", "data:,")])
    stage = api.http.get(f"/v1/jobs/{job.id}").json()["stages"][0]
    assert stage["status"] == "running"
    assert stage["progress"] == {
        "done": 3,
        "total": 10,
        "unit": "steps",
        "text": "مرحبا",
        "picture": "data:,",
        "resumed_at": None,
    }
    fail(jobs, Failure(claim.stage_run_id, 1, "w", ModelError("坏了", stage="first", field="x")))
    failed = api.http.get(f"/v1/jobs/{job.id}").json()
    assert failed["status"] == "failed"
    assert failed["stages"][0]["progress"]["picture"] is None  # of no use any more
    assert (failed["error"]["code"], failed["error"]["message"]) == ("model_error", "坏了")
    assert failed["stages"][0]["errors"][0]["attempt"] == 1


def test_cancel(api: ApiServer) -> None:
    running = submitted(api)
    claimed(api)
    assert api.http.post(f"/v1/jobs/{running.id}/cancel").json()["status"] == "cancelling"
    waiting = submitted(api)
    for _ in range(2):
        assert api.http.post(f"/v1/jobs/{waiting.id}/cancel").json()["status"] == "cancelled"


def test_list_pages_filters(api: ApiServer) -> None:
    ids = [submitted(api).id for _ in range(5)]
    api.http.post(f"/v1/jobs/{ids[1]}/cancel")
    first = api.http.get("/v1/jobs", params={"limit": 3}).json()
    assert [job["id"] for job in first["jobs"]] == ids[:1:-1]
    rest = api.http.get("/v1/jobs", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [job["id"] for job in rest["jobs"]] == ids[1::-1]
    assert rest["next_cursor"] is None
    cancelled = api.http.get("/v1/jobs", params={"status": "cancelled"}).json()["jobs"]
    assert [job["id"] for job in cancelled] == [ids[1]]
    assert len(api.http.get("/v1/jobs", params={"pipeline": "echo"}).json()["jobs"]) == 5
    assert api.http.get("/v1/jobs", params={"pipeline": "qwen2_5_omni"}).json()["jobs"] == []


# Idempotency


def test_the_same_key_and_body_give_the_same_job(api: ApiServer) -> None:
    content = [{"type": "text", "text": "?"}, samples.audio_part(samples.wav())]
    body = {"model": "qwen2_5_omni", "messages": [{"role": "user", "content": content}]}
    reordered = dict(reversed(body.items()))
    first = api.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k-1"})
    second = api.http.post("/v1/jobs", json=reordered, headers={"Idempotency-Key": "k-1"})
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["location"] == first.headers["location"]
    assert len(list(api.services.store.list("jobs/"))) == 1  # the second one's media are gone again


def test_the_same_key_with_another_body_is_refused(api: ApiServer) -> None:
    api.http.post("/v1/jobs", json=ECHO, headers={"Idempotency-Key": "k-1"})
    other = api.http.post("/v1/jobs", json={**ECHO, "seed": 1}, headers={"Idempotency-Key": "k-1"})
    assert (other.status_code, error_of(other)["code"]) == (422, "idempotency_key_reused")
    assert error_of(other)["field"] == "Idempotency-Key"
    assert len(api.http.get("/v1/jobs").json()["jobs"]) == 1


def test_sixteen_submits_at_once_with_one_key_make_one_job(api: ApiServer) -> None:
    def post(_: int) -> httpx2.Response:
        return api.http.post("/v1/jobs", json=ECHO, headers={"Idempotency-Key": "k"})

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(post, range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [202]
    assert len({answer.json()["id"] for answer in answers}) == 1


@pytest.mark.parametrize("key", [b"", b"x" * 256, b"two words", "clé".encode(), b"\xff\xfe", b"a\tb"])
def test_a_key_that_is_none(api: ApiServer, key: bytes) -> None:
    answer = api.http.post("/v1/jobs", json=ECHO, headers=[(b"Idempotency-Key", key)])
    assert answer.status_code == 422
    assert error_of(answer)["field"] == "Idempotency-Key"


# Artifacts

SPEECH = bytes(range(256)) * 5000


def made(api: ApiServer, sound: bytes, media_type: str = "audio/wav") -> str:
    """The URL of a finished job's artifact."""
    job = submitted(api)
    for stage in ("first", "second"):
        claim = claimed(api, f"echo.{stage}", f"w-{stage}")
        artifacts = []
        if stage == "second":
            ref = api.services.store.put(artifact_key(job.id, "second", 1, "audio.wav"), [sound], media_type=media_type)
            artifacts = [StoredArtifact("audio.wav", media_type, ref)]
        [outcome] = api.services.jobs.report(
            [Completion(claim.stage_run_id, 1, f"w-{stage}", artifacts=artifacts, result={"text": "好"})]
        )
        assert set(outcome.queues) == ({"echo@1.second"} if stage == "first" else set())
    view = api.http.get(f"/v1/jobs/{job.id}").json()
    assert view["status"] == "completed"
    assert view["result"]["text"] == "好"
    [artifact] = view["artifacts"]
    assert (artifact["name"], artifact["bytes"]) == ("audio.wav", len(sound))
    return str(artifact["url"])


@pytest.fixture
def speech(api: ApiServer) -> str:
    return made(api, SPEECH)


def test_an_artifact(api: ApiServer, speech: str) -> None:
    answer = api.http.get(speech)
    assert answer.status_code == 200
    assert answer.content == SPEECH
    assert answer.headers["content-type"] == "audio/wav"
    assert answer.headers["content-length"] == str(len(SPEECH))
    assert answer.headers["content-disposition"] == 'inline; filename="audio.wav"'
    assert re.fullmatch(r'"xxh3:[0-9a-f]{32}"', answer.headers["etag"])
    cached = api.http.get(speech, headers={"If-None-Match": f'"other", W/{answer.headers["etag"]}'})
    assert (cached.status_code, cached.content) == (304, b"")


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=100-1999999", slice(100, None)),
        ("bytes=1048570-1048580", slice(1_048_570, 1_048_581)),
        ("bytes=1279000-", slice(1_279_000, None)),
        ("bytes=-10", slice(-10, None)),
        ("bytes=0-", slice(0, None)),
    ],
)
def test_a_part_of_an_artifact(api: ApiServer, speech: str, wanted: str, part: slice) -> None:
    answer = api.http.get(speech, headers={"Range": wanted})
    start, stop, _ = part.indices(len(SPEECH))
    assert answer.status_code == 206
    assert answer.content == SPEECH[part]
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(SPEECH)}"


def test_ranges_that_are_not_served(api: ApiServer, speech: str) -> None:
    beyond = api.http.get(speech, headers={"Range": "bytes=9999999-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(SPEECH)}")
    assert (error_of(beyond)["code"], error_of(beyond)["field"]) == ("range_not_satisfiable", "Range")
    for header in ("bytes=0-1,5-6", "lines=1-2", "bytes=-", "bytes=a-b"):
        assert api.http.get(speech, headers={"Range": header}).status_code == 200
    changed = api.http.get(speech, headers={"Range": "bytes=0-1", "If-Range": '"other"'})
    assert (changed.status_code, len(changed.content)) == (200, len(SPEECH))


def test_an_artifact_that_is_not_there(api: ApiServer, speech: str) -> None:
    assert api.http.get(speech.replace("audio.wav", "nope.wav")).status_code == 404
    assert api.http.get(speech.replace("audio.wav", "%2e%2e%2fetc%2fpasswd")).status_code == 404
    waiting = submitted(api)
    answer = api.http.get(f"/v1/jobs/{waiting.id}/artifacts/audio.wav")
    assert answer.status_code == 409
    assert "not there yet" in error_of(answer)["message"]


def test_a_damaged_artifact_is_not_passed_on_as_whole(
    api: ApiServer, speech: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line of it, and no traceback."""
    [path] = (api.services.settings.data_dir / "objects").rglob("*,audio.wav")
    damaged = bytearray(SPEECH)
    damaged[1000] ^= 1
    path.unlink()  # links to it keep their bytes
    path.write_bytes(damaged)
    heard = caplog.handler
    for name in ("uvicorn", "omni_jobs"):  # the first passes nothing on to the root
        logging.getLogger(name).addHandler(heard)
    try:
        with pytest.raises(httpx2.RemoteProtocolError):
            api.http.get(speech, headers={"X-Request-Id": "broken"})
    finally:
        for name in ("uvicorn", "omni_jobs"):
            logging.getLogger(name).removeHandler(heard)
    said = {record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING}
    assert [line for line in said if "the answer breaks off" in line] == list(said)
    assert len(said) == 1
    assert not any(record.exc_info for record in caplog.records)
    path.unlink()
    gone = api.http.get(speech)
    assert (gone.status_code, error_of(gone)["code"]) == (404, "object_missing")
    assert api.http.get("/healthz").status_code == 200


def test_a_part_of_a_damaged_artifact_is_checked_by_its_size(api: ApiServer, speech: str) -> None:
    """A seek reads no byte before it, so only the whole has a digest to compare."""
    [path] = (api.services.settings.data_dir / "objects").rglob("*,audio.wav")
    path.unlink()
    path.write_bytes(SPEECH[:-1])
    for wanted in ("bytes=0-0", "bytes=-1", "bytes=1000-600000"):
        answer = api.http.get(speech, headers={"Range": wanted})
        assert (answer.status_code, error_of(answer)["code"]) == (500, "object_corrupt")
    path.write_bytes(SPEECH[:-1] + b"?")
    with pytest.raises(httpx2.RemoteProtocolError):
        api.http.get(speech, headers={"Range": "bytes=0-"})  # the whole


@pytest.mark.parametrize("media_type", ["text/html", "image/svg+xml", "application/pdf"])
def test_an_artifact_is_never_active_content(api: ApiServer, media_type: str) -> None:
    answer = api.http.get(made(api, b"<script>alert(1)</script>", media_type))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_small_artifact_that_is_damaged_is_an_error(api: ApiServer) -> None:
    url = made(api, b"RIFF")
    assert api.http.get(url).content == b"RIFF"
    [path] = (api.services.settings.data_dir / "objects").rglob("*,audio.wav")
    path.unlink()
    path.write_bytes(b"RIFE")
    answer = api.http.get(url)
    assert (answer.status_code, error_of(answer)["code"]) == (500, "object_corrupt")


# Pipelines, health, status


def test_pipelines(api: ApiServer) -> None:
    pipelines = {pipeline["name"]: pipeline for pipeline in api.http.get("/v1/pipelines").json()["pipelines"]}
    qwen = pipelines["qwen2_5_omni"]
    assert qwen["voices"] == ["Chelsie", "Ethan"]
    assert qwen["modalities"] == ["text", "audio"]
    assert [stage["name"] for stage in qwen["stages"]] == ["thinker", "talker", "code2wav"]
    assert qwen["stages"][1]["parameters"]["top_k"] == 40
    assert qwen["trouble"] is None


def test_health_and_readiness(api: ApiServer) -> None:
    assert api.http.get("/healthz").json() == {"status": "ok"}
    ready = api.http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["status"] == "ready"
    assert ready.json()["pipelines"]["qwen2_5_omni"]["ok"] is True


def test_the_status_of_queues_and_workers(api: ApiServer) -> None:
    jobs = [submitted(api) for _ in range(3)]
    api.http.post(f"/v1/jobs/{jobs[2].id}/cancel")
    claimed(api)
    status = api.http.get("/v1/status").json()
    load = {stage["stage"]: stage for stage in status["stages"] if stage["pipeline"] == "echo"}
    assert {name: load["first"][name] for name in ("queued", "running", "workers", "slots")} == {
        "queued": 1, "running": 1, "workers": 1, "slots": 5,
    }  # fmt: skip
    assert load["second"]["pending"] == 2
    assert status["jobs"] == {"queued": 1, "in_progress": 1, "cancelling": 0}
    assert [worker["host"] for worker in status["workers"]] == ["host-a"]
    assert [job["id"] for job in status["recent"]] == [job.id for job in reversed(jobs)]


# When something is away


def test_a_job_is_taken_while_the_broker_is_away(settings: Settings) -> None:
    with serve(settings.model_copy(update={"broker_url": Settings(broker_url=NOBODY).broker_url})) as api:  # type: ignore[arg-type]
        assert submitted(api).status == "queued"
        ready = api.http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert ready.json()["broker"]["error"]["code"] == "broker_unavailable"
        assert ready.json()["database"]["ok"] is True


def test_not_ready_without_a_schema(settings: Settings, tmp_path: Path) -> None:
    empty = settings.model_copy(update={"database_url": f"sqlite:///{tmp_path}/empty.sqlite"})
    with serve(empty) as api:
        ready = api.http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
        assert "omni-jobs migrate" in ready.json()["database"]["error"]["message"]
        assert error_of(ready)["message"] == ready.json()["database"]["error"]["message"]
        assert api.http.get("/healthz").status_code == 200


def test_without_its_checkpoint_a_pipeline_takes_no_jobs(settings: Settings) -> None:
    with serve(settings.model_copy(update={"models": {}})) as api:
        answer = api.http.post("/v1/jobs", json={**ECHO, "model": "qwen2_5_omni"})
        assert answer.status_code == 503
        assert (error_of(answer)["code"], error_of(answer)["field"]) == ("model_missing", "model")
        ready = api.http.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["pipelines"]["qwen2_5_omni"]["error"]["code"] == "model_missing"
        assert submitted(api).pipeline == "echo"


# The document, and the shape of errors


def test_the_document_and_its_examples(api: ApiServer) -> None:
    document = api.http.get("/openapi.json").json()
    post = document["paths"]["/v1/jobs"]["post"]
    assert set(post["responses"]) == {
        *("200", "202", "400", "401", "403", "404", "408", "413", "415", "421", "422", "429", "431", "503")
    }
    examples = post["requestBody"]["content"]["application/json"]["examples"]
    assert examples == SUBMITS
    for example in examples.values():
        assert api.http.post("/v1/jobs", json=example["value"]).status_code == 202
    fields = set(api.http.get("/v1/jobs").json()["jobs"][0])
    JobView.model_validate(JOB)
    assert set(JOB) == fields
    for event in EVENTS:
        EventView.model_validate(event)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references <= set(document["components"]["schemas"])
    assert "HTTPValidationError" not in references


def test_unknown_paths_and_methods_have_the_same_shape(api: ApiServer) -> None:
    for method, path, status, code in (
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/jobs/../../etc/passwd", 404, "not_found"),
        ("DELETE", "/v1/jobs", 405, "method_not_allowed"),
        ("GET", "/v1/jobs/bulk", 405, "method_not_allowed"),
        ("DELETE", "/v1/jobs/bulk", 405, "method_not_allowed"),
        ("GET", "/v1/jobs/bulk/events", 404, "not_found"),
        ("GET", "/v1/jobs/job-1", 404, "not_found"),
        ("GET", "/v1/jobs/job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f", 404, "not_found"),
        ("GET", "/v1/jobs/a%00b", 404, "not_found"),
        ("GET", "/v1/jobs/%ff%fe", 404, "not_found"),
        ("POST", "/v1/jobs/job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f/cancel", 404, "not_found"),
        ("GET", "/v1/jobs/job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f/artifacts/a", 404, "not_found"),
    ):
        answer = api.http.request(method, path)
        assert (answer.status_code, error_of(answer)["code"]) == (status, code), path
    for query, field in (
        ({"limit": "0"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": "1_0"}, "limit"),
        ({"limit": " 1"}, "limit"),
        ({"limit": ["5", "200"]}, "limit"),
        ({"limt": "5"}, "limt"),
        ({"cursor": "job-\0"}, "cursor"),
        ({"status": "asleep"}, "status"),
        ({"pipeline": "a\0b"}, "pipeline"),
        ({"error_code": "a\0b"}, "error_code"),
    ):
        answer = api.http.get("/v1/jobs", params=query)
        assert (answer.status_code, error_of(answer)["field"]) == (422, field)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/jobs", "GET, HEAD, OPTIONS, POST"),
        ("/v1/jobs/bulk", "OPTIONS, POST"),
        ("/v1/jobs/job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f", "DELETE, GET, HEAD, OPTIONS"),
        ("/v1/jobs/job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f/cancel", "OPTIONS, POST"),
        ("/healthz", "GET, HEAD, OPTIONS"),
    ],
)
def test_the_answer_to_a_wrong_method_names_the_right_ones(api: ApiServer, path: str, allowed: str) -> None:
    for method in ("PUT", "TRACE"):
        answer = api.http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    answer = api.http.request("OPTIONS", path)
    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, allowed, b"")
    assert api.http.request("OPTIONS", "/nowhere" + path).status_code == 404


def test_no_redirect_leads_to_the_host_of_the_request(api: ApiServer) -> None:
    for path in ("/v1/jobs/", "/healthz/", "//evil.example/v1/jobs/"):
        answer = api.http.get(path)
        assert (answer.status_code, answer.headers.get("location")) == (404, None)


def test_json_is_neither_sniffed_nor_stored(api: ApiServer) -> None:
    for path in ("/v1/jobs", "/v1/status", "/healthz", "/nope", "/openapi.json"):
        answer = api.http.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_a_request_as_a_part(api: ApiServer) -> None:
    request = {"model": "echo", "messages": [{"role": "user", "content": "部分"}]}
    parts = {"request": ("job.json", json.dumps(request).encode())}
    first = api.http.post("/v1/jobs", files=parts, headers={"Idempotency-Key": "parts"})
    again = api.http.post("/v1/jobs", json=request, headers={"Idempotency-Key": "parts"})
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]


ERRORS = [
    kind for kind in vars(error_tree).values() if isinstance(kind, type) and issubclass(kind, error_tree.OmniJobsError)
]

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "not_found_error",
    429: "rate_limit_error",
}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_every_error_has_its_answer(kind: type[OmniJobsError]) -> None:
    """Each error that a route raises is answered with its own status and code."""
    from omni_jobs.web.app import create_app

    app = create_app(Settings())

    @app.get("/raise")
    def route() -> None:
        raise kind("坏了 \udc00", field="a.b")

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.get("/raise")
    assert answer.status_code == kind.http_status
    assert error_of(answer) == {
        "code": kind.code,
        "message": "坏了 \udc00",
        "type": TYPES.get(kind.http_status, "invalid_request_error" if kind.http_status < 500 else "server_error"),
        "param": "a.b",
        "field": "a.b",
        "retryable": kind.retryable,
    }
    assert ("retry-after" in answer.headers) == (kind.http_status in (429, 503))


async def test_a_bug_shows_nothing_of_the_inside() -> None:
    from omni_jobs.web.app import create_app

    app = create_app(Settings())

    @app.get("/raise")
    def route() -> None:
        raise RuntimeError("the secret is 1234")

    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/raise")
    assert answer.status_code == 500
    assert error_of(answer)["code"] == "internal"
    assert "1234" not in answer.text
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
    assert answer.headers["connection"] == "close"


def test_a_client_that_goes_away_harms_nobody(api: ApiServer) -> None:
    for sent in (b"", b'{"model": "echo"'):
        with socket.create_connection((api.host, api.port)) as connection:
            connection.sendall(
                b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n" + sent
            )
    assert submitted(api).status == "queued"
    assert len(api.http.get("/v1/jobs").json()["jobs"]) == 1


def test_out_of_memory_shows_as_retrying(api: ApiServer) -> None:
    job = submitted(api)
    claim = claimed(api)
    fail(api.services.jobs, Failure(claim.stage_run_id, 1, "w", OutOfMemory(stage="first")))
    stage = api.http.get(f"/v1/jobs/{job.id}").json()["stages"][0]
    assert (stage["status"], stage["reason"], stage["errors"][0]["retryable"]) == ("queued", "retry_backoff", True)
