"""Forks over HTTP: what one may change and what not, keys, limits, and who may fork what. On both databases."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from omni_jobs.jobs import Claim, NewWorker, Retention, StoredArtifact
from omni_jobs.settings import Settings
from omni_jobs.storage import artifact_key
from omni_jobs.tenants.tenant_store import Tenants
from omni_jobs.views import JobView
from tests.integration.api_server import BEHIND_A_PROXY, ApiServer, serve
from tests.integration.job_steps import claim, counted_bytes, done, stored_bytes

PIPELINE = """
name: echo
version: "1"
voices: [low, high]
stages:
  first: {kind: echo, processor: echo, produces: bytes, time_limit_s: 60}
  second: {kind: echo, processor: echo, inputs: {first: bytes}, produces: text, time_limit_s: 60}
  third: {kind: echo, processor: tone, produces: waveform, time_limit_s: 60}
outputs:
  text: {stage: second}
  audio: {stage: third}
"""
PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
BODY = {
    "model": "echo",
    "messages": [{"role": "user", "content": "Hello"}],
    "modalities": ["text"],
    "stages": {"first": {"delay_s": 0.5}, "second": {"delay_s": 1}},
    "seed": 7,
    "metadata": {"order": "42"},
    "keep_payloads": True,
}


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    configs = tmp_path / "stage_configs"
    configs.mkdir()
    (configs / "echo.yaml").write_text(PIPELINE)
    return configs


@pytest.fixture
def settings(settings: Settings, configs: Path) -> Settings:
    return settings.model_copy(update={"stage_configs": configs, **BEHIND_A_PROXY})


def run(api: ApiServer, job_id: str, text: str | None = None) -> JobView:
    """Run what is queued of a job, as workers would, until it ends. Its payloads are small.

    Each stage's result is its seed, by its name; or the text. The third makes a sound.
    """
    jobs, echo = api.services.jobs, api.services.pipelines["echo"]
    while not (view := jobs.get(job_id)).status.is_final:
        stage = next(each.name for each in view.stages if each.status == "queued")
        jobs.register_worker(NewWorker(stage, stage, echo.stage_id(stage), "host", 1, 5, echo.version), 60.0)
        [claimed] = claim(jobs, stage)
        assert claimed.job_id == job_id
        result = {stage: claimed.seed} if text is None else {"text": text}
        sound = [sound_of(api, claimed)] if stage == "third" else []
        made = done(claimed, stage, inline_payload=b"x", payload_bytes=1, result=result, artifacts=sound)
        assert jobs.report([made])[0].won
    return view


def sound_of(api: ApiServer, claimed: Claim) -> StoredArtifact:
    key = artifact_key(claimed.job_id, claimed.stage, claimed.attempt, "audio.wav")
    return StoredArtifact("audio.wav", "audio/wav", api.services.store.put(key, [b"RIFF"]))


def without_artifacts(api: ApiServer, job_id: str) -> None:
    """Let the pruner drop the artifacts of an ended job, whose payloads are kept for longer."""
    retention = Retention(payloads_s=3600, inputs_s=3600, artifacts_s=0, events_s=3600, jobs_s=3600)
    api.services.jobs.hasten(retention)
    assert api.services.jobs.prune(retention).artifacts == 1
    api.services.jobs.forget_garbage([note.id for note in api.services.jobs.garbage()])
    assert api.http.get(f"/v1/jobs/{job_id}/artifacts/audio.wav").status_code == 410


def submitted(api: ApiServer, body: Mapping[str, Any] = BODY, **headers: str) -> str:
    answer = api.http.post("/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def forked(api: ApiServer, job_id: str, changes: Mapping[str, Any], **headers: str) -> httpx2.Response:
    return api.http.post(f"/v1/jobs/{job_id}/fork", json=changes, headers=headers)


def request_of(api: ApiServer, job_id: str) -> Mapping[str, Any]:
    return api.services.jobs.origin(job_id).request


def test_a_fork_is_the_job_with_the_changes(api: ApiServer) -> None:
    job_id = submitted(api)
    run(api, job_id)
    answer = forked(api, job_id, {"from_stage": "second", "stages": {"second": {"delay_s": 3}}, "seed": 9})
    assert answer.status_code == 202, answer.text
    fork = JobView.model_validate(answer.json())
    assert answer.headers["location"] == f"/v1/jobs/{fork.id}"
    assert (fork.forked_from, fork.seed, fork.metadata, fork.modalities) == (job_id, 9, {"order": "42"}, ["text"])
    assert [(stage.name, stage.status, stage.attempt) for stage in fork.stages] == [
        ("first", "succeeded", 0),
        ("second", "queued", 0),
    ]
    assert fork.result_so_far == {"first": 7}
    its_own = {"parameters": {"first": {"delay_s": 0.5}, "second": {"delay_s": 3}}}
    assert request_of(api, fork.id) == {**request_of(api, job_id), **its_own}
    assert run(api, fork.id).result == {"first": 7, "second": 9}
    second = JobView.model_validate(forked(api, fork.id, {"from_stage": "second"}).json())  # it keeps payloads, too
    assert (second.seed, second.forked_from) == (9, fork.id)
    assert request_of(api, second.id) == request_of(api, fork.id)


def test_a_fork_may_make_something_else_of_what_is_there(api: ApiServer) -> None:
    job_id = submitted(api)
    run(api, job_id)
    changes = {"from_stage": "third", "modalities": ["text", "audio"], "audio": {"voice": "high"}, "metadata": {}}
    answer = forked(api, job_id, changes, **{"Cancel-After": "15m"})
    assert answer.status_code == 202, answer.text
    fork = JobView.model_validate(answer.json())
    states = {stage.name: stage.status.value for stage in fork.stages}
    assert states == {"first": "succeeded", "second": "succeeded", "third": "queued"}
    assert (fork.metadata, fork.expires_at is None) == ({}, False)
    assert request_of(api, fork.id)["audio"]["voice"] == "high"
    assert run(api, fork.id).result == {"first": 7, "second": 7, "third": 7}
    alone = forked(api, fork.id, {"from_stage": "third", "modalities": ["audio"], "audio": {"voice": "low"}})
    assert [stage["name"] for stage in alone.json()["stages"]] == ["third"]


def test_a_stream_of_a_fork_goes_on_in_a_text_that_was_taken_over(api: ApiServer) -> None:
    job_id = submitted(api)
    run(api, job_id, "One, two")
    fork = forked(api, job_id, {"from_stage": "third", "modalities": ["text", "audio"]}).json()["id"]
    run(api, fork)
    for text_from, rest in [({}, "One, two"), ({"text_from": "second:0:5"}, "two")]:
        answer = api.http.get(f"/v1/jobs/{fork}/events", params=text_from, headers={"Accept": "text/event-stream"})
        events = re.findall(r"^event: text\r?\ndata: (.*?)\r?$", answer.text, re.MULTILINE)
        texts = [json.loads(event) for event in events]
        assert "".join(event["text"] for event in texts if event["stage"] == "second") == rest


@pytest.mark.parametrize(
    ("changes", "status", "field", "words"),
    [
        ({}, 422, "from_stage", "required"),
        ({"from_stage": 1}, 422, "from_stage", "required"),
        ({"from_stage": "fourth"}, 422, "from_stage", "first, second"),
        ({"from_stage": "third"}, 422, "from_stage", "first, second"),
        ({"from_stage": "second", "messages": []}, 422, "messages", "earlier stages read them"),
        ({"from_stage": "second", "model": "echo"}, 422, "model", "earlier stages read them"),
        ({"from_stage": "second", "temperature": 1}, 422, "temperature", "stands in stages"),
        ({"from_stage": "second", "colour": "red"}, 422, "colour", "no such field"),
        ({"from_stage": "second", "seed": "x"}, 422, "seed", "integer"),
        ({"from_stage": "second", "seed": -1}, 422, "seed", "0"),
        ({"from_stage": "second", "modalities": ["video"]}, 422, "modalities.0", "does not make"),
        ({"from_stage": "second", "audio": {"voice": "high"}}, 422, "audio", "not among the modalities"),
        ({"from_stage": "second", "stages": {"first": {"delay_s": 1}}}, 422, "stages.first", "takes over stage first"),
        ({"from_stage": "second", "stages": {"second": {"delay_s": -1}}}, 422, "stages.second.delay_s", "0"),
        ({"from_stage": "second", "stages": {"second": {"speed": 1}}}, 422, "stages.second.speed", ""),
        ({"from_stage": "second", "stages": {"third": {}}}, 422, "stages.third", "do not need"),
        ({"from_stage": "second", "expires_at": 1}, 422, "expires_at", "future"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    api: ApiServer, changes: dict[str, Any], status: int, field: str, words: str
) -> None:
    job_id = submitted(api)
    run(api, job_id)
    answer = forked(api, job_id, changes)
    error = answer.json()["error"]
    assert (answer.status_code, error["field"]) == (status, field), error
    assert words in error["message"]
    assert len(api.services.jobs.list().jobs) == 1


def test_a_fork_is_answered_once_it_has_ended_if_the_client_prefers_that(api: ApiServer) -> None:
    job_id = submitted(api)
    run(api, job_id)
    fork = {"from_stage": "second"}
    answer = forked(api, job_id, fork, **{"Prefer": "wait=1", "Idempotency-Key": "mine"})
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=1")
    run(api, answer.json()["id"])
    answer = forked(api, job_id, fork, **{"Prefer": "wait=10", "Idempotency-Key": "mine"})
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")


def test_a_voice_is_changed_where_it_is_heard(api: ApiServer) -> None:
    job_id = submitted(api, {**BODY, "modalities": ["text", "audio"]})
    run(api, job_id)
    answer = forked(api, job_id, {"from_stage": "second", "audio": {"voice": "high"}})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "audio")
    assert forked(api, job_id, {"from_stage": "third", "audio": {"voice": "high"}}).status_code == 202


def test_a_job_that_is_not_there_yet_or_kept_nothing_is_a_conflict(api: ApiServer) -> None:
    job_id = submitted(api, {**BODY, "keep_payloads": False})
    answer = forked(api, job_id, {"from_stage": "second"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (409, "from_stage")
    assert "stage first of job" in answer.json()["error"]["message"]
    run(api, job_id)
    answer = forked(api, job_id, {"from_stage": "second"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (409, "from_stage")
    assert "fork from stage first" in answer.json()["error"]["message"]
    assert forked(api, job_id, {"from_stage": "first", "seed": 1}).status_code == 202


def test_an_artifact_that_is_not_kept_is_named(api: ApiServer) -> None:
    job_id = submitted(api, {**BODY, "modalities": ["text", "audio"]})
    run(api, job_id)
    without_artifacts(api, job_id)
    for answer in (
        forked(api, job_id, {"from_stage": "second"}),
        api.http.post(f"/v1/jobs/{job_id}/retry", params={"from_stage": "second"}),
    ):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["field"]) == (409, "conflict", "from_stage")
        assert f"of job {job_id} these are not kept any longer: audio of stage third; " in error["message"]
    assert forked(api, job_id, {"from_stage": "second", "modalities": ["text"]}).status_code == 202
    assert forked(api, job_id, {"from_stage": "third"}).status_code == 202
    assert api.http.post(f"/v1/jobs/{job_id}/retry", params={"from_stage": "third"}).status_code == 200


def test_a_fork_reads_no_media(settings: Settings, configs: Path) -> None:
    accepting = PIPELINE.replace("voices:", "accepts: [text, image]\nvoices:")
    (configs / "echo.yaml").write_text(accepting)
    with serve(settings) as api:
        picture = {"type": "image_url", "image_url": {"url": PNG}}
        job_id = submitted(api, {**BODY, "messages": [{"role": "user", "content": [picture]}]})
        run(api, job_id)
        answer = forked(api, job_id, {"from_stage": "first"})
        assert (answer.status_code, answer.json()["error"]["field"]) == (409, "from_stage")
        assert "media" in answer.json()["error"]["message"]
        fork = forked(api, job_id, {"from_stage": "second"}).json()["id"]
        run(api, fork)
        assert counted_bytes(api.services.db) == stored_bytes(api.services.db)


def test_a_job_of_another_pipeline_file_is_named_with_what_differs(settings: Settings, configs: Path) -> None:
    with serve(settings) as api:
        job_id = submitted(api)
        run(api, job_id)
    (configs / "echo.yaml").write_text(PIPELINE.replace('version: "1"', 'version: "2"'))
    with serve(settings) as api:
        answer = forked(api, job_id, {"from_stage": "second"})
        error = answer.json()["error"]
        assert (answer.status_code, error["field"]) == (409, "job_id")
        assert "version 1, digest" in error["message"]
        assert "this server (version 2, digest" in error["message"]


def test_a_key_names_one_fork_also_when_its_origin_is_gone(api: ApiServer) -> None:
    job_id = submitted(api)
    run(api, job_id)
    named = {"Idempotency-Key": "mine"}
    first = forked(api, job_id, {"from_stage": "second", "seed": 1}, **named)
    again = forked(api, job_id, {"from_stage": "second", "seed": 1}, **named)
    assert (first.status_code, again.status_code, again.json()["id"]) == (202, 200, first.json()["id"])
    assert forked(api, job_id, {"from_stage": "second", "seed": 2}, **named).status_code == 422
    run(api, first.json()["id"])
    other_id = submitted(api)
    assert forked(api, other_id, {"from_stage": "second", "seed": 1}, **named).status_code == 422
    assert api.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    again = forked(api, job_id, {"from_stage": "second", "seed": 1}, **named)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])


def test_a_tenant_forks_its_own_jobs_within_its_limits(api: ApiServer) -> None:
    tenants = Tenants(api.services.db)
    tenants.create("acme", limits={"queued_jobs": 2})  # the last count may still have the job itself
    tenants.create("globex")
    mine = {"X-Tenant": "acme"}
    job_id = submitted(api, **mine)
    run(api, job_id)
    assert forked(api, job_id, {"from_stage": "second"}, **{"X-Tenant": "globex"}).status_code == 404
    assert forked(api, job_id, {"from_stage": "second"}, **mine).json()["tenant"] == "acme"
    *_, answer = [forked(api, job_id, {"from_stage": "second"}, **mine) for _ in range(2)]
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_jobs")
