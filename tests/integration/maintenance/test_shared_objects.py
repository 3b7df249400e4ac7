"""Objects in real stores that a fork shares with the job that it was forked from: the last of both takes them along."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from omni_jobs.database.database import Database
from omni_jobs.errors import NotFound
from omni_jobs.jobs import Jobs, StoredArtifact
from omni_jobs.maintenance.pruner import Pruner
from omni_jobs.new_job import NewJob, Reuse
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore, artifact_key, open_store, payload_key
from tests.integration.job_steps import claim, done, new_job, register_each, submit_one

PAYLOAD, PICTURE = b"what the first stage hands on", b"what the first stage shows"


def run(jobs: Jobs, store: ObjectStore, stage: str) -> None:
    [claimed] = claim(jobs, stage, 1)
    made = {}
    if stage == "first":
        payload = store.put(payload_key(claimed.job_id, stage, claimed.attempt), [PAYLOAD])
        picture = store.put(artifact_key(claimed.job_id, stage, claimed.attempt, "a.png"), [PICTURE])
        made = {"payload": payload, "artifacts": [StoredArtifact("a.png", "image/png", picture)]}
    assert jobs.report([done(claimed, stage, payload_bytes=len(PAYLOAD) if made else 0, **made)])[0].won


def fork(jobs: Jobs, origin_id: str) -> str:
    job: NewJob = new_job(reuse=Reuse(origin_id, frozenset({"first"})), keeps_payloads=True)
    return jobs.fork(job).job_id


@pytest.mark.parametrize("first_to_go", ["origin", "fork"])
def test_an_object_goes_with_the_last_job_that_needs_it(
    database: Database, storage_settings: Settings, first_to_go: str
) -> None:
    jobs, store = Jobs(database), open_store(storage_settings)
    register_each(jobs)
    pruner = Pruner(jobs, store, storage_settings.model_copy(update={"orphan_after_s": 0.0}))
    origin_id = submit_one(jobs, new_job(keeps_payloads=True)).job_id
    run(jobs, store, "first")
    run(jobs, store, "second")
    forks = [fork(jobs, origin_id), fork(jobs, origin_id)]
    run(jobs, store, "second")  # of the first fork; the other one waits
    keys = {payload_key(origin_id, "first", 1), artifact_key(origin_id, "first", 1, "a.png")}

    def kept() -> set[str]:
        pruner.once()
        assert jobs.garbage() == []
        return {stored.key for stored in store.list()}

    assert kept() == keys
    for job_id in [origin_id, forks[0]] if first_to_go == "origin" else [forks[0], origin_id]:
        jobs.delete(job_id)
        assert kept() == keys
        for left in {origin_id, *forks} & {view.id for view in jobs.list().jobs}:
            assert b"".join(store.open_stream(jobs.artifact(left, "a.png").ref)) == PICTURE
    [claimed] = claim(jobs, "second")
    upstream = claimed.upstream["first"]
    assert upstream is not None
    assert not isinstance(upstream, bytes)
    assert b"".join(store.open_stream(upstream)) == PAYLOAD
    assert jobs.report([done(claimed, "second")])[0].won
    jobs.delete(forks[1])
    assert kept() == set()


def test_a_payload_goes_once_the_last_fork_has_read_it(database: Database, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, storage_sync=False)
    jobs, store = Jobs(database), open_store(settings)
    register_each(jobs)
    pruner = Pruner(jobs, store, settings)
    origin_id = submit_one(jobs, new_job()).job_id
    run(jobs, store, "first")
    job_id = jobs.fork(new_job(reuse=Reuse(origin_id, frozenset({"first"})))).job_id
    key, picture = payload_key(origin_id, "first", 1), artifact_key(origin_id, "first", 1, "a.png")
    for _ in range(2):
        assert {stored.key for stored in store.list()} == {key, picture}
        [claimed] = jobs.claim("second", 1).claims
        assert jobs.report([done(claimed, "second")])[0].won
        pruner.round()
    assert {stored.key for stored in store.list()} == {picture}
    assert jobs.get(job_id).status.is_final


def test_a_fork_has_its_objects_whatever_is_deleted_as_it_comes(database: Database, tmp_path: Path) -> None:
    """A job and its fork are forked and deleted at once, and what is noted is collected, again and again."""
    settings = Settings(data_dir=tmp_path, storage_sync=False)
    jobs, store = Jobs(database), open_store(settings)
    register_each(jobs)
    pruner, barrier = Pruner(jobs, store, settings), Barrier(4)

    def fork_at_once(origin_id: str) -> str | None:
        barrier.wait(10)
        try:
            return fork(jobs, origin_id)
        except NotFound:
            return None

    def delete_at_once(job_id: str) -> None:
        barrier.wait(10)
        jobs.delete(job_id)
        pruner.collect()

    def at_once(call: Callable[[str], str | None], *job_ids: str) -> list[Callable[[], str | None]]:
        return [pool.submit(call, job_id).result for job_id in job_ids]

    came = 0
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            origin_id = submit_one(jobs, new_job(keeps_payloads=True)).job_id
            run(jobs, store, "first")
            middle_id = fork(jobs, origin_id)
            for job_id in (origin_id, middle_id):
                jobs.cancel(job_id)
            results = [*at_once(fork_at_once, middle_id, origin_id), *at_once(delete_at_once, origin_id, middle_id)]
            forks = [job_id for job_id in [result() for result in results] if job_id is not None]
            pruner.collect()
            for job_id in forks:
                picture = jobs.artifact(job_id, "a.png").ref
                assert b"".join(store.open_stream(picture)) == PICTURE
            for claimed in claim(jobs, "second"):
                payload = claimed.upstream["first"]
                assert payload is not None
                assert not isinstance(payload, bytes)
                assert b"".join(store.open_stream(payload)) == PAYLOAD
                assert jobs.report([done(claimed, "second")])[0].won
            for job_id in forks:
                jobs.delete(job_id)
            pruner.collect()
            assert list(store.list()) == []
            came += len(forks)
    assert came
