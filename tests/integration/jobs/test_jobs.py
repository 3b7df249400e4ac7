"""Every transition of omni_jobs.jobs, on SQLite and on PostgreSQL."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from omni_jobs.database.database import Database
from omni_jobs.errors import (
    Conflict,
    DatabaseUnavailable,
    Fenced,
    InvalidRequest,
    ModelError,
    NotFound,
    OutOfMemory,
    SlotTaken,
    StageError,
)
from omni_jobs.jobs import (
    Claim,
    Completion,
    Failure,
    Hint,
    Jobs,
    NewWorker,
    ProgressReport,
    StoredArtifact,
    SubmitResult,
    as_written,
    new_job_id,
)
from omni_jobs.states import JobState, StageRunState
from tests.integration.job_steps import (
    ANY_SCRIPT,
    DIAMOND,
    REF,
    TWICE,
    claim,
    complete_all,
    done,
    failed,
    new_job,
    pass_time,
    register,
    stages,
)
from tests.services.postgres import until_one_waits_for_a_lock


@pytest.mark.parametrize("at_once", [1, 5, 20])
def test_few_are_claimed_as_many_are(jobs: Jobs, at_once: int) -> None:
    wanted = [new_job(DIAMOND, seed=number, request={"number": number}) for number in range(20)]
    hints = [hint for job in wanted for hint in jobs.submit(job).hints]
    register(jobs, "w", slots=100)
    claims = [each for n in range(0, 20, at_once) for each in claim(jobs, "w", hints[n : n + at_once])]
    assert [(each.job_id, each.stage, each.attempt, each.request, each.seed, each.upstream) for each in claims] == [
        (job.job_id, "a", 1, job.request, job.seed, {}) for job in wanted
    ]
    assert {jobs.get(job.job_id).status for job in wanted} == {JobState.IN_PROGRESS}
    assert all(jobs.get(each.job_id).stages[0].worker == "w" for each in claims)
    payloads = [done(each, "w", inline_payload=bytes([n]), payload_bytes=1) for n, each in enumerate(claims)]
    hints = [hint for outcome in jobs.complete(payloads) for hint in outcome.hints]
    claims = [each for n in range(0, 40, at_once) for each in claim(jobs, "w", hints[n : n + at_once])]
    assert [(each.stage, each.upstream) for each in claims] == [
        (stage, {"a": bytes([n])}) for n in range(20) for stage in ("b", "c")
    ]
    # Again: by the same hints what is held counts as claimed, what is stale is left out.
    stale = [Hint(hints[0].stage_run_id, 7, hints[0].queue)]
    assert [each.stage_run_id for each in claim(jobs, "w", [*hints[:at_once], *stale])] == [
        hint.stage_run_id for hint in hints[:at_once] if hint.stage_run_id != stale[0].stage_run_id
    ]
    with pytest.raises(Fenced):
        claim(jobs, "nobody", hints[:at_once])


# submit


def test_submit_queues_the_first_stages(jobs: Jobs) -> None:
    job = new_job(DIAMOND, metadata={"user": "u"})
    submitted = jobs.submit(job)
    assert submitted.created
    assert [(hint.attempt, hint.queue) for hint in submitted.hints] == [(0, "echo.a")]
    view = jobs.get(job.job_id)
    assert view.id == job.job_id
    assert view.status == JobState.QUEUED
    assert view.metadata == {"user": "u"}
    assert view.seed == 2**63 - 1
    assert view.started_at is None
    assert view.created_at.utcoffset() is not None
    assert stages(jobs, job.job_id) == {"a": "queued", "b": "pending", "c": "pending", "d": "pending"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"graph": DIAMOND, "metadata": {"user": ANY_SCRIPT}, "tenant": "t", "modalities": ["text", "audio"]},
        {"graph": {"second": ["first"]}, "seed": 0, "expires_in_s": 90.25},
        {"expires_at": 4e9 + 0.1},
    ],
    ids=["plain", "diamond", "limited", "dated"],
)
def test_a_new_job_reads_as_it_was_written(database: Database, changes: dict[str, Any]) -> None:
    job = new_job(**changes)
    for stage in job.stages:
        register(Jobs(database), f"w-{stage.name}", stage.name)
    submitted = Jobs(database).submit(job)
    assert submitted.created_at is not None
    assert as_written(job, submitted.created_at) == Jobs(database).get(job.job_id)


def test_a_job_that_may_have_been_there_has_no_time_of_its_own(database: Database) -> None:
    jobs, job = Jobs(database), new_job()
    first = jobs.submit(job)
    assert jobs.submit(job) == replace(first, created_at=None, job=None)


def test_inputs_outside_the_job_are_not_waited_for(jobs: Jobs) -> None:
    job = new_job({"second": ["first"]})
    assert [hint.queue for hint in jobs.submit(job).hints] == ["echo.second"]


def test_ids_sort_by_time() -> None:
    ids = [new_job_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert ids[0] < ids[-1]
    assert all(len(job_id) == 36 and job_id[16] == "7" for job_id in ids)


def test_an_idempotency_key_names_one_job(jobs: Jobs) -> None:
    first = jobs.submit(new_job(idempotency_key="k"))
    again = jobs.submit(new_job(idempotency_key="k"))
    assert first.created
    assert (again.job_id, again.created, list(again.hints)) == (first.job_id, False, [])
    with pytest.raises(Conflict) as caught:
        jobs.submit(new_job(request_digest="other", idempotency_key="k"))
    assert caught.value.field == "Idempotency-Key"
    assert len(jobs.list().jobs) == 1


def test_an_idempotency_key_used_at_once_names_one_job(jobs: Jobs) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: jobs.submit(new_job(idempotency_key="k")), range(24)))
    assert len({answer.job_id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1


# Not on SQLite, where nobody else writes while a submit is open.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_job_that_is_deleted_while_its_key_is_used_again(jobs: Jobs, database: Database) -> None:
    first = jobs.submit(new_job(idempotency_key="k"))
    deleted = threading.Event()

    @event.listens_for(database._engine, "before_cursor_execute")
    def delete(_: Connection, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT jobs.id, jobs.request_digest") and not deleted.is_set():
            deleted.set()
            with database.begin() as other:
                for table in ("stage_runs", "jobs"):
                    column = "id" if table == "jobs" else "job_id"
                    other.execute(text(f"DELETE FROM {table} WHERE {column} = :id"), {"id": first.job_id})

    refused, neighbour = jobs.submit_all([new_job(idempotency_key="k"), new_job()])
    assert deleted.is_set()
    assert isinstance(refused, DatabaseUnavailable)
    assert isinstance(neighbour, SubmitResult)
    assert neighbour.created
    assert jobs.submit(new_job(idempotency_key="k")).created


def test_an_idempotency_key_is_its_tenants_own(jobs: Jobs) -> None:
    first = jobs.submit(new_job(tenant="a", idempotency_key="k"))
    assert [jobs.is_known(tenant, "k") for tenant in ("a", "b")] == [True, False]
    wishes = [
        new_job(tenant="b", request_digest="other", idempotency_key="k"),
        new_job(tenant="a", idempotency_key="k"),
        new_job(tenant="a", request_digest="other", idempotency_key="k"),
        new_job(tenant="c", idempotency_key="k"),
    ]
    other, again, conflict, third = jobs.submit_all(wishes)
    assert isinstance(conflict, Conflict)
    assert [answer.created for answer in (other, again, third)] == [True, False, True]  # type: ignore[union-attr]
    assert again.job_id == first.job_id  # type: ignore[union-attr]
    assert len({first.job_id, other.job_id, third.job_id}) == 3  # type: ignore[union-attr]
    assert jobs.is_known("b", "k")


def test_many_at_once_are_answered_one_by_one(jobs: Jobs) -> None:
    known = jobs.submit(new_job(idempotency_key="known"))
    wishes = [
        new_job(),
        new_job(idempotency_key="known"),
        new_job(request_digest="other", idempotency_key="known"),
        new_job({"only": []}, idempotency_key="twice"),
        new_job({"only": []}, idempotency_key="twice"),
        new_job(DIAMOND, idempotency_key="new"),
    ]
    first, again, conflict, one, other, diamond = jobs.submit_all(wishes)
    assert isinstance(conflict, Conflict)
    assert conflict.field == "Idempotency-Key"
    assert [answer.created for answer in (first, again, diamond)] == [True, False, True]  # type: ignore[union-attr]
    assert isinstance(one, SubmitResult)
    assert isinstance(other, SubmitResult)
    assert (again.job_id, one.job_id) == (known.job_id, other.job_id)  # type: ignore[union-attr]
    assert [one.created, other.created].count(True) == 1
    assert len(jobs.list().jobs) == 4
    for answer, queue in ((first, "echo.first"), (diamond, "echo.a")):
        assert isinstance(answer, SubmitResult)
        assert [hint.queue for hint in answer.hints] == [queue]
    assert [hint.queue for answer in (one, other) for hint in answer.hints] == ["echo.only"]
    assert stages(jobs, diamond.job_id)["a"] == "queued"  # type: ignore[union-attr]
    assert jobs.submit_all([]) == []


def test_batches_that_share_keys_make_each_job_once(jobs: Jobs) -> None:
    keys = [f"k{n}" for n in range(20)]

    def submit(seed: int) -> list[str]:
        mine = random.Random(seed).sample(keys, len(keys))
        answers = jobs.submit_all([new_job(idempotency_key=key) for key in mine])
        return [answer.job_id for answer in answers if isinstance(answer, SubmitResult) and answer.created]

    with ThreadPoolExecutor(4) as pool:
        made = [job_id for batch in pool.map(submit, range(12)) for job_id in batch]
    assert len(made) == len(set(made)) == len(keys)


# claim


def test_a_claim_gives_all_it_takes_to_run(jobs: Jobs) -> None:
    media = [{"key": "k", "size": 1, "digest": "d", "media_type": "audio/wav"}]
    hints = jobs.submit(new_job(request={"a": 1}, media=media)).hints
    register(jobs, "w")
    (claimed,) = claim(jobs, "w", hints)
    assert (claimed.stage, claimed.attempt, claimed.has_successors, claimed.failures) == ("first", 1, True, {})
    assert claimed.request == {"a": 1}
    assert claimed.media == media
    assert claimed.upstream == {}
    assert claimed.seed == 2**63 - 1
    view = jobs.get(claimed.job_id)
    assert view.status == JobState.IN_PROGRESS
    assert view.started_at is not None
    assert view.stages[0].worker == "w"
    assert view.stages[0].started_at == view.started_at


def test_a_stage_run_is_claimed_once(jobs: Jobs) -> None:
    hints = jobs.submit(new_job()).hints
    register(jobs, "w1")
    register(jobs, "w2")
    assert len(claim(jobs, "w1", [*hints, *hints])) == 1
    assert claim(jobs, "w2", hints) == []
    stale = [Hint(hint.stage_run_id, 7, hint.queue) for hint in hints]
    assert claim(jobs, "w1", [*stale, Hint(12345, 0, "")]) == []


def test_a_repeated_claim_gives_the_same(jobs: Jobs) -> None:
    hints = jobs.submit(new_job()).hints
    register(jobs, "w")
    assert claim(jobs, "w", hints) == claim(jobs, "w", hints)


def test_claims_keep_the_order_of_their_hints(jobs: Jobs) -> None:
    hints = [hint for _ in range(20) for hint in jobs.submit(new_job()).hints]
    random.Random(0).shuffle(hints)
    register(jobs, "w")
    assert [claimed.stage_run_id for claimed in claim(jobs, "w", hints)] == [hint.stage_run_id for hint in hints]


def test_claims_need_a_live_lease(jobs: Jobs) -> None:
    hints = jobs.submit(new_job()).hints
    with pytest.raises(Fenced):
        claim(jobs, "unknown", hints)
    register(jobs, "w", lease_s=-1)
    with pytest.raises(Fenced):
        claim(jobs, "w", hints)
    assert stages(jobs, jobs.list().jobs[0].id)["first"] == "queued"


def test_rivals_share_the_work(jobs: Jobs) -> None:
    hints = [hint for _ in range(150) for hint in jobs.submit(new_job()).hints]
    workers = [f"w{n}" for n in range(4)]
    for worker in workers:
        register(jobs, worker)

    def take(worker: str) -> list[int]:
        mine = list(hints)
        random.Random(worker).shuffle(mine)
        found = []
        for start in range(0, len(mine), 16):
            found += [claimed.stage_run_id for claimed in claim(jobs, worker, mine[start : start + 16])]
        return found

    with ThreadPoolExecutor(4) as pool:
        taken = [set(found) for found in pool.map(take, workers)]
    assert sum(map(len, taken)) == len(set().union(*taken)) == 150


# complete


def test_completing_every_stage_completes_the_job(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = jobs.submit(new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w", submitted.hints)
    (outcome,) = jobs.complete([done(claimed, "w", inline_payload=b"abc", payload_bytes=3, result={"a": 1, "b": 1})])
    assert outcome.won
    assert outcome.job_state == JobState.IN_PROGRESS
    assert [(hint.queue, hint.attempt) for hint in outcome.hints] == [("echo.second", 0)]
    (claimed,) = claim(jobs, "w", outcome.hints)
    assert claimed.upstream == {"first": b"abc"}
    assert not claimed.has_successors
    artifact = StoredArtifact("a b.wav", "audio/wav", REF)
    (outcome,) = jobs.complete([done(claimed, "w", artifacts=[artifact], result={"b": 2})])
    assert outcome.won
    assert outcome.job_state == JobState.COMPLETED
    assert not outcome.hints
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.COMPLETED
    assert view.result == {"a": 1, "b": 2}
    assert view.finished_at is not None
    assert [stage.payload_bytes for stage in view.stages] == [3, 0]
    assert view.artifacts[0].url == f"/v1/jobs/{submitted.job_id}/artifacts/a%20b.wav"
    assert jobs.artifact(submitted.job_id, "a b.wav").ref == REF


def test_a_stored_payload_reaches_the_next_stage_as_its_ref(jobs: Jobs) -> None:
    hints = jobs.submit(new_job()).hints
    register(jobs, "w")
    (claimed,) = claim(jobs, "w", hints)
    (outcome,) = jobs.complete([done(claimed, "w", payload=REF, payload_bytes=REF.size)])
    assert claim(jobs, "w", outcome.hints)[0].upstream == {"first": REF}


def test_a_repeated_completion_has_the_same_answer(jobs: Jobs) -> None:
    hints = jobs.submit(new_job()).hints
    register(jobs, "w")
    (claimed,) = claim(jobs, "w", hints)
    completion = done(claimed, "w", artifacts=[StoredArtifact("a", "text/plain", REF)])
    assert jobs.complete([completion]) == jobs.complete([completion])
    assert jobs.complete([completion, completion])[1].won


def test_only_the_claim_that_holds_completes(jobs: Jobs) -> None:
    submitted = jobs.submit(new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w", submitted.hints)
    wrong = [
        Completion(claimed.stage_run_id, claimed.attempt, "other"),
        Completion(claimed.stage_run_id, claimed.attempt + 1, "w"),
        Completion(4711, 1, "w"),
    ]
    outcomes = jobs.complete(wrong)
    assert [outcome.won for outcome in outcomes] == [False, False, False]
    assert outcomes[2].job_state is None
    assert stages(jobs, submitted.job_id)["first"] == "running"


def test_inputs_that_end_at_once_queue_their_consumer_once(jobs: Jobs) -> None:
    register(jobs, "w")
    both = threading.Barrier(2)

    def complete(claimed: Claim) -> Sequence[Hint]:
        both.wait()
        return jobs.complete([done(claimed, "w")])[0].hints

    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            submitted = jobs.submit(new_job(DIAMOND))
            parallel = claim(jobs, "w", complete_all(jobs, "w", submitted.hints))
            assert [claimed.stage for claimed in parallel] == ["b", "c"]
            hints = [hint for found in pool.map(complete, parallel) for hint in found]
            assert [hint.queue for hint in hints] == ["echo.d"]
            complete_all(jobs, "w", hints)
            assert jobs.get(submitted.job_id).status == JobState.COMPLETED


@pytest.mark.parametrize("others", [1, 20])
def test_what_ends_and_what_comes_in_its_place_are_one_turn(jobs_or_forgetful: Jobs, others: int) -> None:
    """Its answer may be lost: then the same turn gives the same again."""
    jobs = jobs_or_forgetful
    register(jobs, "w", slots=100)
    (first,) = jobs.submit(new_job()).hints
    (ended,) = claim(jobs, "w", [first])
    hints = [hint for _ in range(others) for hint in jobs.submit(new_job()).hints]
    stale = hints[0]._replace(attempt=5)
    wanted = [(hint.stage_run_id, hint.attempt) for hint in (*hints, first)]
    [outcome], claims = jobs.complete_and_claim([done(ended, "w", inline_payload=b"abc")], "w", wanted)
    assert outcome.won
    assert [hint.queue for hint in outcome.hints] == ["echo.second"]
    assert [(each.stage_run_id, each.attempt) for each in claims] == [(hint.stage_run_id, 1) for hint in hints]
    # The next turn: all of them, and what the first one queued, with a hint that is stale.
    [second] = outcome.hints
    wanted = [(stale.stage_run_id, stale.attempt), (second.stage_run_id, second.attempt)]
    outcomes, [taken] = jobs.complete_and_claim([done(each, "w", result={"n": 1}) for each in claims], "w", wanted)
    assert all(each.won for each in outcomes)
    assert (taken.stage_run_id, taken.upstream) == (second.stage_run_id, {"first": b"abc"})
    for job_id in {each.job_id for each in (*claims, taken)}:
        assert [error for run in jobs.get(job_id).stages for error in run.errors] == []
    assert stages(jobs, ended.job_id) == {"first": "succeeded", "second": "running"}


@pytest.mark.parametrize("others", [1, 20])
def test_a_turn_of_a_fenced_worker_claims_nothing(jobs_or_forgetful: Jobs, others: int) -> None:
    """What ended before may be recorded, or be told again alone."""
    jobs = jobs_or_forgetful
    register(jobs, "w", slots=100)
    (ended,) = claim(jobs, "w", jobs.submit(new_job({"only": []})).hints)
    hints = [hint for _ in range(others) for hint in jobs.submit(new_job()).hints]
    pass_time(jobs._db, 100)
    with pytest.raises(Fenced):
        jobs.complete_and_claim([done(ended, "w")], "w", [(hint.stage_run_id, hint.attempt) for hint in hints])
    assert {stages(jobs, view.id).get("first") for view in jobs.list(limit=50).jobs} <= {"queued", None}
    assert jobs.complete([done(ended, "w")])[0].won
    assert jobs.get(ended.job_id).status == JobState.COMPLETED


@pytest.mark.parametrize("others", [0, 20])
def test_what_an_end_cancels_is_not_claimed_with_it(jobs: Jobs, others: int) -> None:
    register(jobs, "w", slots=100)
    artifact = StoredArtifact("a", "text/plain", REF)
    first, *hints = [hint for _ in range(1 + others) for hint in jobs.submit(new_job(DIAMOND)).hints]
    [a] = claim(jobs, "w", [first])
    b, c = jobs.complete([done(a, "w", artifacts=[artifact])])[0].hints
    [claimed] = claim(jobs, "w", [b])
    wanted = [(hint.stage_run_id, hint.attempt) for hint in (c, *hints)]
    outcomes, claims = jobs.complete_and_claim([done(claimed, "w", artifacts=[artifact])], "w", wanted)
    assert [outcome.won for outcome in outcomes] == [False]
    assert stages(jobs, a.job_id) == {"a": "succeeded", "b": "failed", "c": "cancelled", "d": "cancelled"}
    assert [each.stage_run_id for each in claims] == [hint.stage_run_id for hint in hints]
    assert claim(jobs, "w", [c]) == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_stage_runs_written_since_the_jobs_were_locked_are_passed_over(database: Database, jobs: Jobs) -> None:
    register(jobs, "w")
    [known], [late] = jobs.submit(new_job()).hints, jobs.submit(new_job()).hints
    claims = claim(jobs, "w", [known, late])
    completions = [done(claims[0], "w"), replace(done(claims[1], "w"), stage_run_id=10**9)]
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as tx:  # it has the first job locked, and another stage run appears with its end
            tx.execute(text("UPDATE jobs SET tenant = 'x' WHERE id = :id"), {"id": claims[0].job_id})
            tx.execute(text("UPDATE stage_runs SET id = 1000000000 WHERE id = :id"), {"id": late.stage_run_id})
            completing = pool.submit(jobs.complete, completions)
            until_one_waits_for_a_lock(database)
        outcomes = completing.result()
    assert [outcome.won for outcome in outcomes] == [True, False]
    assert stages(jobs, claims[1].job_id)["first"] == "running"


def test_an_artifact_name_taken_fails_that_job_alone(jobs: Jobs) -> None:
    register(jobs, "w")
    artifact = StoredArtifact("a", "text/plain", REF)
    twice, fine = jobs.submit(new_job()), jobs.submit(new_job())
    claims = claim(jobs, "w", [*twice.hints, *fine.hints])
    outcomes = jobs.complete([done(claimed, "w", artifacts=[artifact]) for claimed in claims])
    claims = claim(jobs, "w", [hint for outcome in outcomes for hint in outcome.hints])
    outcomes = jobs.complete([done(claims[0], "w", artifacts=[artifact]), done(claims[1], "w")])
    assert [outcome.won for outcome in outcomes] == [False, True]
    error = jobs.get(twice.job_id).error
    assert error is not None
    assert (error.stage, error.key) == ("second", "a")
    assert jobs.get(fine.job_id).status == JobState.COMPLETED


def test_a_result_must_be_json() -> None:
    with pytest.raises(StageError) as caught:
        Completion(1, 1, "w", result={"loss": float("nan")})
    assert caught.value.field == "result"


# fail


def test_a_retryable_error_is_tried_again_after_a_pause(jobs_or_forgetful: Jobs, database_url: str) -> None:
    jobs = jobs_or_forgetful
    submitted = jobs.submit(new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w", submitted.hints)
    outcome = jobs.fail(failed(claimed, "w", OutOfMemory()))
    assert outcome.won
    assert not outcome.hints
    stage = jobs.get(submitted.job_id).stages[0]
    assert (stage.status, stage.reason, stage.attempt) == (StageRunState.QUEUED, "retry_backoff", 1)
    assert [(error.code, error.attempt, error.worker) for error in stage.errors] == [("out_of_memory", 1, "w")]
    hint = Hint(claimed.stage_run_id, 1, "echo.first")
    assert claim(jobs, "w", [hint]) == []
    assert jobs.rescue().hints == []
    database = Database(database_url)
    pass_time(database, 2.0)
    database.close()
    (claimed,) = claim(jobs, "w", [hint])
    assert (claimed.attempt, claimed.failures) == (2, {"out_of_memory": 1})
    assert jobs.get(submitted.job_id).stages[0].reason is None


def test_the_rescuer_hints_a_retry_when_it_is_due(jobs: Jobs, database: Database) -> None:
    (hint,) = jobs.submit(new_job()).hints
    register(jobs, "w")
    (claimed,) = claim(jobs, "w", [hint])
    jobs.fail(failed(claimed, "w", OutOfMemory()))
    assert jobs.rescue().hints == []
    pass_time(database, 1.1)
    assert jobs.rescue().hints == [Hint(hint.stage_run_id, 1, hint.queue)]


def test_the_last_attempt_fails_the_job(jobs: Jobs, database: Database) -> None:
    submitted = jobs.submit(new_job())
    register(jobs, "w", lease_s=10_000)
    hint = submitted.hints[0]
    for attempt in range(3):
        (claimed,) = claim(jobs, "w", [Hint(hint.stage_run_id, attempt, hint.queue)])
        outcome = jobs.fail(failed(claimed, "w", OutOfMemory("no room for 12 GiB")))
        pass_time(database, 100)
    assert outcome.job_state == JobState.FAILED
    view = jobs.get(submitted.job_id)
    assert view.error is not None
    assert (view.error.code, view.error.message, view.error.stage) == ("out_of_memory", "no room for 12 GiB", "first")
    assert stages(jobs, submitted.job_id) == {"first": "failed", "second": "cancelled"}
    assert [error.attempt for error in view.stages[0].errors] == [1, 2, 3]
    assert view.result is None


def test_a_final_error_fails_the_job_at_once_and_once(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = jobs.submit(new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w", submitted.hints)
    failure = failed(claimed, "w", ModelError("bad audio", field="audio", key="k"))
    assert jobs.fail(failure) == jobs.fail(failure)
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.error is not None
    assert (view.error.field, view.error.key) == ("audio", "k")
    assert len(view.stages[0].errors) == 1
    assert not jobs.complete([done(claimed, "w")])[0].won
    assert not jobs.fail(Failure(claimed.stage_run_id, 1, "other", ModelError())).won


def test_a_failed_job_stops_what_still_runs(jobs: Jobs) -> None:
    submitted = jobs.submit(new_job(DIAMOND))
    register(jobs, "w")
    b, c = claim(jobs, "w", complete_all(jobs, "w", submitted.hints))
    assert jobs.renew("w", 60) == []
    jobs.fail(failed(b, "w", ModelError()))
    assert stages(jobs, submitted.job_id) == {"a": "succeeded", "b": "failed", "c": "running", "d": "cancelled"}
    assert jobs.renew("w", 60) == [c.stage_run_id]
    (outcome,) = jobs.complete([done(c, "w", artifacts=[StoredArtifact("a", "text/plain", REF)])])
    assert not outcome.won
    assert jobs.renew("w", 60) == []
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.stages[2].status == StageRunState.CANCELLED
    assert view.artifacts == []


# release


def test_what_is_released_is_queued_again_without_a_failure(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = jobs.submit(new_job())
    register(jobs, "w1")
    register(jobs, "w2")
    (claimed,) = claim(jobs, "w1", submitted.hints)
    jobs.release([(claimed.stage_run_id, 1)], "w1")
    assert jobs.get(submitted.job_id).stages[0].worker is None
    (again,) = jobs.claim("w2", [(claimed.stage_run_id, 1)])
    assert (again.attempt, again.failures) == (2, {})
    assert jobs.release([(claimed.stage_run_id, 1)], "w1") == []
    assert not jobs.complete([done(claimed, "w1")])[0].won
    assert jobs.complete([done(again, "w2")])[0].won


def test_a_release_gives_hints(jobs: Jobs) -> None:
    (hint,) = jobs.submit(new_job()).hints
    register(jobs, "w")
    claim(jobs, "w", [hint])
    assert jobs.release([(hint.stage_run_id, 1)], "w") == [Hint(hint.stage_run_id, 1, hint.queue)]


def test_a_retired_worker_leaves_nothing(jobs: Jobs) -> None:
    (hint,) = jobs.submit(new_job()).hints
    register(jobs, "w")
    claim(jobs, "w", [hint])
    assert jobs.retire_worker("w") == [Hint(hint.stage_run_id, 1, hint.queue)]
    assert jobs.workers() == []
    assert jobs.retire_worker("w") == []
    with pytest.raises(Fenced):
        jobs.renew("w", 60)


# leases


def test_a_lost_workers_stage_runs_are_freed(jobs_or_forgetful: Jobs, database_url: str) -> None:
    jobs = jobs_or_forgetful
    submitted = jobs.submit(new_job())
    register(jobs, "w1", lease_s=10)
    (claimed,) = claim(jobs, "w1", submitted.hints)
    assert jobs.rescue().freed == 0
    database = Database(database_url)
    pass_time(database, 10)
    database.close()
    with pytest.raises(Fenced):
        jobs.renew("w1", 10)
    jobs.rescue()
    stage = jobs.get(submitted.job_id).stages[0]
    assert (stage.status, stage.reason) == (StageRunState.QUEUED, "no_worker")
    assert [(error.code, error.worker) for error in stage.errors] == [("worker_lost", "w1")]
    assert not jobs.complete([done(claimed, "w1")])[0].won
    register(jobs, "w2")
    (again,) = jobs.claim("w2", [(claimed.stage_run_id, 1)])
    assert (again.attempt, again.failures) == (2, {"worker_lost": 1})


def test_rescue_gives_hints_for_what_it_frees(jobs: Jobs, database: Database) -> None:
    (hint,) = jobs.submit(new_job()).hints
    register(jobs, "w", lease_s=10)
    claim(jobs, "w", [hint])
    pass_time(database, 10)
    rescued = jobs.rescue()
    assert (rescued.freed, rescued.hints) == (1, [Hint(hint.stage_run_id, 1, hint.queue)])


def test_a_renewed_lease_holds(jobs: Jobs, database: Database) -> None:
    register(jobs, "w", lease_s=10)
    for _ in range(3):
        pass_time(database, 8)
        assert jobs.renew("w", 10) == []
    assert jobs.rescue().freed == 0
    assert [worker.id for worker in jobs.workers()] == ["w"]


def test_an_unknown_owner_is_rescued(jobs: Jobs, database: Database) -> None:
    (hint,) = jobs.submit(new_job()).hints
    register(jobs, "w")
    claim(jobs, "w", [hint])
    with database.begin() as tx:
        tx.execute(text("DELETE FROM workers"))
    assert jobs.rescue().freed == 1


def test_a_job_that_kills_its_workers_ends(jobs: Jobs) -> None:
    submitted = jobs.submit(new_job())
    hint = submitted.hints[0]
    for attempt in range(3):
        register(jobs, f"w{attempt}", slot="slot")
        assert len(jobs.claim(f"w{attempt}", [(hint.stage_run_id, attempt)])) == 1
    assert register(jobs, "w3", slot="slot") == []
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.error is not None
    assert view.error.code == "quarantined"
    assert [error.code for error in view.stages[0].errors] == ["worker_lost"] * 3
    assert jobs.list(error_code="quarantined").jobs == [view]
    assert jobs.list(error_code="worker_lost").jobs == []


def test_parallel_stage_runs_lost_for_the_last_time_fail_their_job_once(jobs: Jobs) -> None:
    submitted = jobs.submit(new_job({"a": [], "b": [], "c": ["a", "b"]}))
    for attempt in range(3):
        register(jobs, f"w{attempt}", slot="slot")
        assert len(claim(jobs, f"w{attempt}", [hint._replace(attempt=attempt) for hint in submitted.hints])) == 2
    assert register(jobs, "w3", slot="slot") == []
    assert stages(jobs, submitted.job_id) == {"a": "failed", "b": "cancelled", "c": "cancelled"}


def test_a_restart_in_the_same_slot_takes_over_at_once(jobs: Jobs) -> None:
    (hint,) = jobs.submit(new_job()).hints
    register(jobs, "boot-1", slot="host/first")
    (claimed,) = claim(jobs, "boot-1", [hint])
    assert register(jobs, "boot-2", slot="host/first") == [Hint(hint.stage_run_id, 1, hint.queue)]
    with pytest.raises(Fenced):
        jobs.renew("boot-1", 60)
    with pytest.raises(Fenced):
        claim(jobs, "boot-1", [hint])
    assert not jobs.complete([done(claimed, "boot-1")])[0].won
    assert [worker.id for worker in jobs.workers()] == ["boot-2"]
    assert register(jobs, "boot-2", slot="host/first") == []


def test_of_rivals_for_a_slot_one_gets_it(jobs: Jobs) -> None:
    def start(number: int) -> bool:
        try:
            jobs.register_worker(NewWorker(f"boot-{number}", "s", "echo", "first", "host", 1, 4, "1", "d"), 60.0)
        except SlotTaken:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        got_it = list(pool.map(start, range(8)))
    assert got_it.count(True) == 1
    assert [worker.id for worker in jobs.workers()] == [f"boot-{got_it.index(True)}"]


def test_the_slot_of_a_worker_that_lives_is_not_taken(jobs: Jobs, database: Database) -> None:
    newcomer = NewWorker("b", "slot", "echo", "first", "host", 2, 4, "1", "d", pid_space="boot/1", pid_started=7)
    (hint,) = jobs.submit(new_job()).hints
    register(jobs, "a", slot="slot")
    (claimed,) = claim(jobs, "a", [hint])
    seen = jobs.slot_holder("slot")
    assert seen is not None
    with pytest.raises(SlotTaken):
        jobs.register_worker(newcomer, 60.0)
    with pytest.raises(SlotTaken):
        jobs.register_worker(newcomer, 60.0, instead_of=replace(seen, worker_id="another"))
    with pytest.raises(SlotTaken):
        jobs.register_worker(newcomer, 60.0, instead_of=replace(seen, renewed_at=seen.renewed_at - 1))
    assert jobs.renew("a", 60.0) == []
    assert jobs.complete([done(claimed, "a")])[0].won
    pass_time(database, 100)
    assert jobs.register_worker(newcomer, 60.0) == [], "whose lease is over has lost its slot"
    holder = jobs.slot_holder("slot")
    assert holder is not None
    assert (holder.worker_id, holder.pid, holder.pid_space, holder.pid_started) == ("b", 2, "boot/1", 7)
    assert holder.has_lease
    with pytest.raises(Fenced):
        jobs.renew("a", 60.0)


def test_a_worker_that_loads_holds_its_slot_and_is_not_counted_on(jobs: Jobs, database: Database) -> None:
    loading = NewWorker("a", "slot", "echo", "first", "host", 1, 4, "1", "d")
    jobs.submit(new_job())
    jobs.register_worker(loading, 60.0, loading=True)
    assert jobs.workers() == []
    pass_time(database, 10)
    assert jobs.rescue().hints == [], "nobody would take them"
    with pytest.raises(SlotTaken):
        jobs.register_worker(replace(loading, worker_id="b"), 60.0)
    jobs.register_worker(loading, 60.0)
    assert [worker.id for worker in jobs.workers()] == ["a"]
    assert len(jobs.rescue().hints) == 1


def test_that_a_living_worker_was_fenced_is_not_its_stage_runs_fault(jobs_or_forgetful: Jobs) -> None:
    """Stopped and continued more often than a stage run may lose its worker; one that is killed still counts."""
    jobs = jobs_or_forgetful
    submitted = jobs.submit(new_job())
    (hint,) = submitted.hints
    attempt = 0
    for _ in range(TWICE.worker_lost + 2):
        register(jobs, f"w{attempt}", slot="slot")
        (claimed,) = jobs.claim(f"w{attempt}", [(hint.stage_run_id, attempt)])
        assert not claimed.alone
        register(jobs, f"w{attempt + 1}", slot="slot")  # while it is stopped
        jobs.forgive(f"w{attempt}", [hint.stage_run_id])  # and now it goes on
        attempt += 1
    assert {error.code for error in jobs.get(submitted.job_id).stages[0].errors} == {"fenced"}
    for _ in range(TWICE.worker_lost + 1):
        assert jobs.get(submitted.job_id).status == JobState.IN_PROGRESS
        register(jobs, f"w{attempt}", slot="slot")
        assert len(jobs.claim(f"w{attempt}", [(hint.stage_run_id, attempt)])) == 1
        attempt += 1
        register(jobs, f"w{attempt}", slot="slot")
        jobs.forgive("another", [hint.stage_run_id])
    view = jobs.get(submitted.job_id)
    assert view.error is not None
    assert view.error.code == "quarantined"
    codes = [error.code for error in view.stages[0].errors]
    assert codes == ["fenced"] * (TWICE.worker_lost + 2) + ["worker_lost"] * (TWICE.worker_lost + 1)


def test_what_is_forgiven_counts_no_more_after_a_retry(jobs: Jobs) -> None:
    submitted = jobs.submit(new_job({"only": []}))
    (hint,) = submitted.hints
    for attempt in range(TWICE.worker_lost + 1):
        register(jobs, f"w{attempt}", slot="slot")
        jobs.claim(f"w{attempt}", [(hint.stage_run_id, attempt)])
    register(jobs, "w3", slot="slot")
    assert jobs.get(submitted.job_id).status == JobState.FAILED
    jobs.retry(submitted.job_id)
    jobs.forgive("w0", [hint.stage_run_id])
    (claimed,) = jobs.claim("w3", [(hint.stage_run_id, TWICE.worker_lost + 1)])
    assert claimed.failures == {}


def test_what_has_failed_stays_quarantined_and_its_errors_say_why(jobs_or_forgetful: Jobs) -> None:
    """Its workers all lived, and said so too late: a failed job without a lost worker would explain nothing."""
    jobs = jobs_or_forgetful
    submitted = jobs.submit(new_job({"only": []}))
    (hint,) = submitted.hints
    for attempt in range(TWICE.worker_lost + 1):
        register(jobs, f"w{attempt}", slot="slot")
        jobs.claim(f"w{attempt}", [(hint.stage_run_id, attempt)])
    register(jobs, "last", slot="slot")
    for attempt in range(TWICE.worker_lost + 1):
        jobs.forgive(f"w{attempt}", [hint.stage_run_id])
    view = jobs.get(submitted.job_id)
    assert view.error is not None
    assert view.error.code == "quarantined"
    assert [error.code for error in view.stages[0].errors] == ["worker_lost"] * (TWICE.worker_lost + 1)


# cancel


def test_queued_work_is_cancelled_at_once(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = jobs.submit(new_job())
    register(jobs, "w")
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLED
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLED
    assert claim(jobs, "w", submitted.hints) == []
    assert stages(jobs, submitted.job_id) == {"first": "cancelled", "second": "cancelled"}
    assert jobs.get(submitted.job_id).finished_at is not None


@pytest.mark.parametrize("ending", ["complete", "fail", "release", "lost"])
def test_running_work_is_asked_to_stop(jobs_or_forgetful: Jobs, ending: str) -> None:
    jobs = jobs_or_forgetful
    submitted = jobs.submit(new_job())
    register(jobs, "w", slot="slot")
    (claimed,) = claim(jobs, "w", submitted.hints)
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLING
    assert jobs.get(submitted.job_id).finished_at is None
    assert stages(jobs, submitted.job_id) == {"first": "running", "second": "cancelled"}
    assert jobs.renew("w", 60) == [claimed.stage_run_id]
    match ending:
        case "complete":
            assert not jobs.complete([done(claimed, "w", result={"a": 1})])[0].won
        case "fail":
            assert jobs.fail(failed(claimed, "w", OutOfMemory())).job_state == JobState.CANCELLED
        case "release":
            assert jobs.release([(claimed.stage_run_id, 1)], "w") == []
        case "lost":
            assert register(jobs, "w2", slot="slot") == []
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.CANCELLED
    assert view.finished_at is not None
    assert view.result is None
    assert stages(jobs, submitted.job_id) == {"first": "cancelled", "second": "cancelled"}
    assert jobs.rescue().freed == 0


def test_cancelling_waits_for_the_last_that_runs(jobs: Jobs) -> None:
    submitted = jobs.submit(new_job(DIAMOND))
    register(jobs, "w")
    b, c = claim(jobs, "w", complete_all(jobs, "w", submitted.hints))
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLING
    assert jobs.release([(b.stage_run_id, b.attempt)], "w") == []
    assert jobs.get(submitted.job_id).status == JobState.CANCELLING
    assert jobs.release([(c.stage_run_id, c.attempt)], "w") == []
    assert jobs.get(submitted.job_id).status == JobState.CANCELLED


def test_cancel_comes_too_late(jobs: Jobs) -> None:
    submitted = jobs.submit(new_job({"only": []}))
    register(jobs, "w")
    complete_all(jobs, "w", submitted.hints)
    assert jobs.cancel(submitted.job_id) == JobState.COMPLETED
    for unknown in ("job-unknown", "\x00", "\ud800"):
        with pytest.raises(NotFound):
            jobs.cancel(unknown)


def test_cancel_and_completion_have_one_winner(jobs: Jobs) -> None:
    register(jobs, "w")
    both = threading.Barrier(2)

    def cancel(claimed: Claim) -> JobState:
        both.wait()
        return jobs.cancel(claimed.job_id)

    def complete(claimed: Claim) -> bool:
        both.wait()
        return jobs.complete([done(claimed, "w")])[0].won

    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            (claimed,) = claim(jobs, "w", jobs.submit(new_job({"only": []})).hints)
            cancelled, completed = pool.submit(cancel, claimed), pool.submit(complete, claimed)
            state = jobs.get(claimed.job_id).status if completed.result() else cancelled.result()
            final = jobs.get(claimed.job_id).status
            assert final == (JobState.COMPLETED if completed.result() else JobState.CANCELLED)
            assert state in (final, JobState.CANCELLING)


def test_cancel_and_claim_agree(jobs: Jobs) -> None:
    register(jobs, "w")
    both = threading.Barrier(2)

    def cancel(job_id: str) -> JobState:
        both.wait()
        return jobs.cancel(job_id)

    def take(hints: Sequence[Hint]) -> list[Claim]:
        both.wait()
        return claim(jobs, "w", hints)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            submitted = jobs.submit(new_job())
            cancelled, taken = pool.submit(cancel, submitted.job_id), pool.submit(take, submitted.hints)
            if taken.result():
                assert cancelled.result() == JobState.CANCELLING
                assert stages(jobs, submitted.job_id) == {"first": "running", "second": "cancelled"}
            else:
                assert cancelled.result() == JobState.CANCELLED


# announcing


def test_a_lost_hint_is_repeated_where_a_slot_is_free(jobs: Jobs, database: Database) -> None:
    (hint,) = jobs.submit(new_job()).hints
    pass_time(database, 10)
    assert jobs.rescue().hints == [], "nobody is there to take it"
    register(jobs, "w", slots=1)
    assert jobs.rescue().hints == [hint]
    assert jobs.rescue().hints == [], "announced a moment ago"
    pass_time(database, 3.1)
    assert jobs.rescue().hints == [hint]


def test_a_backlog_behind_busy_workers_is_left_alone(jobs: Jobs, database: Database) -> None:
    register(jobs, "w", slots=2, lease_s=10_000)
    hints = [hint for _ in range(5) for hint in jobs.submit(new_job()).hints]
    claims = claim(jobs, "w", hints[:2])
    pass_time(database, 100)
    assert jobs.rescue().hints == []
    jobs.complete([done(claims[0], "w")])
    assert jobs.rescue().hints == hints[2:], "the slot is free and nothing came"


def test_a_lost_backlog_is_announced_in_bounded_rounds(database: Database) -> None:
    jobs = Jobs(database, republish_at_most=10)
    register(jobs, "w", slots=100, lease_s=10_000)
    hints = [hint for _ in range(25) for hint in jobs.submit(new_job()).hints]
    lost = set(hints[::2])
    claim(jobs, "w", [hint for hint in hints if hint not in lost])
    pass_time(database, 3.1)
    rounds = [jobs.rescue().hints for _ in range(3)]
    assert [len(found) for found in rounds] == [10, 3, 0]
    assert {hint for found in rounds for hint in found} == lost


def test_rivalling_rescuers_do_not_double(jobs: Jobs, database: Database) -> None:
    register(jobs, "w", slots=1000, lease_s=10_000)
    hints = [hint for _ in range(60) for hint in jobs.submit(new_job()).hints]
    pass_time(database, 3.1)
    with ThreadPoolExecutor(4) as pool:
        found = [hint for rescued in pool.map(lambda _: jobs.rescue(), range(8)) for hint in rescued.hints]
    assert sorted(found, key=lambda hint: hint.stage_run_id) == hints


# progress and reads


def test_progress_is_shown_while_the_attempt_runs(jobs: Jobs) -> None:
    submitted = jobs.submit(new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w", submitted.hints)
    jobs.report_progress([])
    jobs.report_progress(
        [
            ProgressReport(claimed.stage_run_id, 1, 3, 10, "tokens", "abc"),
            ProgressReport(claimed.stage_run_id, 2, 9, 10, "tokens"),
            ProgressReport(4711, 1, 9, 10, "tokens"),
        ]
    )
    progress = jobs.get(submitted.job_id).stages[0].progress
    assert progress is not None
    assert progress.model_dump() == {"done": 3, "total": 10, "unit": "tokens", "text": "abc"}
    jobs.release([(claimed.stage_run_id, 1)], "w")
    assert jobs.get(submitted.job_id).stages[0].progress is None


def test_text_of_any_script_comes_back_as_it_was(jobs: Jobs) -> None:
    register(jobs, "w")
    value = {ANY_SCRIPT: [ANY_SCRIPT]}
    submitted = jobs.submit(new_job(request=value, metadata=value))
    (claimed,) = claim(jobs, "w", submitted.hints)
    assert claimed.request == value
    jobs.report_progress([ProgressReport(claimed.stage_run_id, 1, 1, 1, "tokens", ANY_SCRIPT)])
    (outcome,) = jobs.complete([done(claimed, "w", result=value)])
    complete_all(jobs, "w", outcome.hints)
    view = jobs.get(submitted.job_id)
    assert view.result == value
    assert view.metadata == value
    assert view.stages[0].progress is not None
    assert view.stages[0].progress.text == ANY_SCRIPT
    failing = jobs.submit(new_job())
    (claimed,) = claim(jobs, "w", failing.hints)
    jobs.fail(failed(claimed, "w", ModelError(ANY_SCRIPT, field=ANY_SCRIPT)))
    error = jobs.get(failing.job_id).error
    assert error is not None
    assert (error.message, error.field) == (ANY_SCRIPT, ANY_SCRIPT)


def test_pages_go_back_in_time(jobs: Jobs) -> None:
    ids = [jobs.submit(new_job()).job_id for _ in range(7)]
    page = jobs.list(limit=3)
    seen = [view.id for view in page.jobs]
    while page.next_cursor is not None:
        page = jobs.list(limit=3, cursor=page.next_cursor)
        seen += [view.id for view in page.jobs]
    assert seen == ids[::-1]


def test_pages_by_state_and_pipeline(jobs: Jobs) -> None:
    kept = jobs.submit(new_job()).job_id
    jobs.cancel(jobs.submit(new_job()).job_id)
    other = jobs.submit(new_job(pipeline="other")).job_id
    assert [view.id for view in jobs.list(state=JobState.QUEUED).jobs] == [other, kept]
    assert [view.id for view in jobs.list(state=JobState.QUEUED, pipeline="echo").jobs] == [kept]
    assert jobs.list(pipeline="none").jobs == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "job-\x00"}, "cursor"),
        ({"pipeline": "\x00"}, "pipeline"),
    ],
)
def test_bad_pages_are_refused(jobs: Jobs, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        jobs.list(**arguments)
    assert caught.value.field == field


def test_what_is_not_there_is_not_found(jobs: Jobs) -> None:
    job_id = jobs.submit(new_job()).job_id
    for unknown in ("job-unknown", "\x00", "\ud800", ""):
        with pytest.raises(NotFound):
            jobs.get(unknown)
        with pytest.raises(NotFound):
            jobs.artifact(job_id, unknown)


def test_counts_and_workers_say_what_is_going_on(jobs: Jobs) -> None:
    hints = [hint for _ in range(3) for hint in jobs.submit(new_job()).hints]
    register(jobs, "w", slots=2)
    register(jobs, "gone", lease_s=-1)
    claim(jobs, "w", hints[:1])
    counts = jobs.counts()
    assert counts.jobs == {JobState.QUEUED: 2, JobState.IN_PROGRESS: 1, JobState.CANCELLING: 0}
    assert {(count.stage, count.state.value): count.count for count in counts.stage_runs} == {
        ("second", "pending"): 3,
        ("first", "queued"): 2,
        ("first", "running"): 1,
    }
    assert [(worker.id, worker.slots, worker.running) for worker in jobs.workers()] == [("w", 2, 1)]


# the database's side of it


def test_a_crowd_never_deadlocks(jobs: Jobs, database: Database) -> None:
    """Claims, completions, cancels, progress and rescues in big, differently ordered batches."""
    workers = [f"w{n}" for n in range(3)]
    for worker in workers:
        register(jobs, worker, slots=1000)
    submitted = [jobs.submit(new_job(DIAMOND)) for _ in range(40)]

    def work(worker: str) -> None:
        rng = random.Random(worker)
        hints = [hint for one in submitted for hint in one.hints]
        while hints:
            rng.shuffle(hints)
            claims = claim(jobs, worker, hints)
            rng.shuffle(claims)
            jobs.report_progress(
                [ProgressReport(claimed.stage_run_id, claimed.attempt, 1, 2, "n") for claimed in claims]
            )
            outcomes = jobs.complete([done(claimed, worker) for claimed in claims])
            hints = [hint for outcome in outcomes for hint in outcome.hints]

    def disturb(_: str) -> None:
        rng = random.Random(0)
        for one in rng.sample(submitted, 12):
            jobs.cancel(one.job_id)
            jobs.rescue()

    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(work, worker) for worker in workers] + [pool.submit(disturb, "")]
        for task in tasks:
            task.result()
    if database.dialect == "postgresql":
        with database.begin() as tx:
            query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            assert tx.execute(text(query)).scalar_one() == 0
    register(jobs, "last", slots=1000)
    while hints := jobs.rescue().hints:
        complete_all(jobs, "last", hints)
    for one in submitted:
        view = jobs.get(one.job_id)
        if view.status == JobState.IN_PROGRESS:  # its last hints went to a worker that had finished
            assert any(stage.status == StageRunState.QUEUED for stage in view.stages)
        else:
            assert view.status in (JobState.COMPLETED, JobState.CANCELLED)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_round_reads_whole_tables(jobs: Jobs, database: Database) -> None:
    scans = []

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.split()[0] not in ("SELECT", "UPDATE", "DELETE"):
            return
        plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters[0] if many else parameters)
        scans.extend(
            f"{row[-1]}: {statement}"
            for row in plan
            if row[-1].startswith(("SCAN stage_runs", "SCAN jobs")) and "USING INDEX ix_stage_runs" not in row[-1]
        )

    submitted = [jobs.submit(new_job()) for _ in range(4)]
    register(jobs, "w", lease_s=10_000)
    claims = claim(jobs, "w", [hint for one in submitted for hint in one.hints])
    jobs.report_progress([ProgressReport(claims[0].stage_run_id, 1, 1, 2, "n")])
    jobs.complete([done(claims[0], "w")])
    jobs.fail(failed(claims[1], "w", OutOfMemory()))
    jobs.fail(failed(claims[1], "w", OutOfMemory()))
    jobs.release([(claims[2].stage_run_id, 1)], "w")
    jobs.cancel(submitted[3].job_id)
    jobs.renew("w", 60)
    pass_time(database, 5)
    scans.clear()  # pass_time reads all
    jobs.rescue()
    jobs.retire_worker("w")
    jobs.get(submitted[0].job_id)
    jobs.list(state=JobState.QUEUED)
    jobs.list(pipeline="echo")
    jobs.counts()
    jobs.workers()
    assert scans == []
