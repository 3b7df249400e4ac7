"""Filters of jobs against a plain model, what they read of a database, and actions on many jobs; on both databases."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event, text

from omni_jobs.database.database import Database
from omni_jobs.database.statement import listed, texts
from omni_jobs.database.tables import label_of
from omni_jobs.errors import InvalidRequest, ModelError
from omni_jobs.identity import PipelineId
from omni_jobs.jobs import JobFilter, Jobs, NewJob
from omni_jobs.jobs.read import labelled, matching
from omni_jobs.new_job import first_job_id, new_job_id
from omni_jobs.states import JobState
from tests.integration.job_steps import (
    ANY_SCRIPT,
    CHAIN,
    claim,
    counted_bytes,
    done,
    fail,
    failed,
    new_job,
    register,
    stored_bytes,
    submit_one,
)
from tests.services.postgres import by_owner

TENANTS, PIPELINES, STAGES = ("a", "b"), ("echo", "other"), tuple(CHAIN)
VERSIONS = ("1", "2.0-a")
METADATA: Sequence[Mapping[str, str]] = (
    {},
    {"project": "sea"},
    {"project": "sea", "take": "1"},
    {"project": "land", "take": "1"},
    {ANY_SCRIPT: ANY_SCRIPT * 20},  # more than an index takes, and what PostgreSQL's text refuses
)
SEA, LAND, TAKE = ("project", "sea"), ("project", "land"), ("take", "1")
BASE_MS = 1_767_600_000_000


def job_id_at(millis: int) -> str:
    return f"job-{(BASE_MS + millis) << 80 | 7 << 76 | 0b10 << 62:032x}"


def filled(jobs: Jobs) -> list[str]:
    """Jobs of both tenants and pipelines, with all metadata, in all that a job may come to. Return their ids."""
    made: list[NewJob] = [
        new_job(
            job_id=job_id_at(1000 * number),
            tenant=TENANTS[number % 2],
            pipeline=PipelineId(PIPELINES[number // 2 % 2], "d"),
            pipeline_version=VERSIONS[number // 3 % 2],
            metadata=METADATA[number % len(METADATA)],
        )
        for number in range(40)
    ]
    jobs.submit_all(made)
    for stage in STAGES:
        register(jobs, stage, stage, slots=100)  # of the pipeline echo
    for number, each in enumerate(claim(jobs, "first")):
        if number % 3 == 0:
            jobs.report([done(each, "first")])
        elif number % 3 == 1:
            fail(jobs, failed(each, "first", ModelError("no")))
    for number, each in enumerate(claim(jobs, "second")):
        if number % 3 == 0:
            jobs.report([done(each, "second")])
        elif number % 3 == 1:
            fail(jobs, failed(each, "second", ModelError("no")))
    runs = [view.id for view in jobs.list(limit=100).jobs if any(stage.status == "running" for stage in view.stages)]
    for job_id in (*runs[:2], *(made[number].job_id for number in (3, 7, 35))):
        jobs.cancel(job_id)
    return [each.job_id for each in made][::-1]


def matches(view: Any, wanted: JobFilter) -> bool:
    """The plain model of a filter, over what a job's view shows."""
    at_stage = {each.name for each in view.stages if each.status in ("queued", "running", "failed")}
    return (
        (wanted.states is None or view.status in wanted.states)
        and wanted.pipeline in (None, view.pipeline)
        and wanted.version in (None, view.pipeline_version)
        and (wanted.stage is None or wanted.stage in at_stage)
        and (wanted.error_code is None or (view.error is not None and view.error.code == wanted.error_code))
        and set(wanted.metadata) <= view.metadata.items()
        and (wanted.created_after is None or view.id >= first_job_id(wanted.created_after))
        and (wanted.created_before is None or view.id < first_job_id(wanted.created_before))
        and wanted.tenant in (None, view.tenant)
    )


def maybe(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from((None, *values))


TIMES = maybe(*(BASE_MS / 1000 + second for second in (0, 5.5, 12, 30, 100)))
FILTERS = st.builds(
    JobFilter,
    states=maybe(*(frozenset([state]) for state in JobState), frozenset(JobState) - {JobState.QUEUED}, frozenset()),
    pipeline=maybe(*PIPELINES, "none"),
    version=maybe(*VERSIONS, "none"),
    stage=maybe(*STAGES, "none"),
    error_code=maybe("model_error", "none"),
    metadata=st.sampled_from(
        (*(tuple(each.items()) for each in METADATA), (TAKE,), (("project", "air"),), (SEA, LAND))
    ),
    created_after=TIMES,
    created_before=TIMES,
    tenant=maybe(*TENANTS, "none"),
)


def test_a_list_holds_what_a_plain_model_says(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is combined, however long the pages are, and however few jobs a page may look at."""
    ids = filled(jobs)
    views = {view.id: view for view in jobs.list(limit=100).jobs}
    assert {view.status for view in views.values()} >= set(JobState) - {JobState.EXPIRED}
    assert list(views) == ids

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(FILTERS, st.sampled_from([1, 3, 40]), st.sampled_from([3, 7, 5000]), st.sampled_from([1, 100]))
    def check(wanted: JobFilter, limit: int, look: int, counted: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(matching, "_FIRST_LOOK", min(look, 200))
            patch.setattr(matching, "LOOKED_AT", look)
            patch.setattr(matching, "_COUNTED", counted)
            patch.setattr(labelled, "_LEAST_READ", 1)
            found: list[str] = []
            cursor, calls = None, 0
            while calls == 0 or cursor is not None:
                page = jobs.matching(wanted, limit, cursor)
                assert len(page.ids) <= limit
                found += page.ids
                cursor, calls = page.next_cursor, calls + 1
                assert calls <= 2 * len(ids)
        assert found == [each for each in ids if matches(views[each], wanted)], wanted

    check()


def test_an_id_holds_its_time() -> None:
    before = datetime.now(UTC).timestamp() - 2e-6
    job_id = new_job_id()
    after = datetime.now(UTC).timestamp() + 2e-6
    assert first_job_id(before) <= job_id < first_job_id(after)
    assert first_job_id(-1e9) < first_job_id(0.001) < first_job_id(1e11)
    assert first_job_id(0) == f"job-{7 << 76 | 0b10 << 62:032x}"


COMBINATIONS: tuple[tuple[JobFilter, str], ...] = (
    (JobFilter(metadata=[SEA]), "job_labels"),
    (JobFilter(metadata=[SEA, TAKE], tenant="b"), "job_labels"),
    (JobFilter(metadata=[SEA], stage="first", pipeline="echo", error_code="x"), "job_labels"),
    (JobFilter(stage="first"), "ix_jobs_state_pipeline_id"),
    (JobFilter(stage="first", tenant="b"), "ix_jobs_tenant_state_id_pipeline"),
    (JobFilter(stage="first", error_code="x"), "error_code"),
    (JobFilter(stage="first", pipeline="echo", created_after=1.0), "ix_jobs_state_pipeline_id"),
    (JobFilter(created_after=1.0, created_before=9e9), "jobs"),
    (JobFilter(states=frozenset([JobState.FAILED]), created_before=9e9), "ix_jobs_state_pipeline_id"),
    (JobFilter(tenant="b", created_before=9e9, pipeline="echo"), "ix_jobs_tenant_state_id_pipeline"),
)


def test_every_filter_walks_an_index(jobs: Jobs, database: Database) -> None:
    """No statement scans a table or sorts one: each finds rows by an index that begins with its conditions, or ids."""
    others = {"project": "land", "take": "2", "scene": "1"}
    jobs.submit_all([new_job(tenant="a", metadata=others) for _ in range(2000)])
    jobs.submit_all([new_job(tenant="b", metadata={"project": "sea", "take": "1"}) for _ in range(3)])
    if database.dialect == "postgresql":
        by_owner(database, "ANALYZE")
    plans: list[str] = []
    explained = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith(("SELECT", "WITH")):
            rows = cursor.connection.execute(f"{explained} {statement}", parameters)
            plans.append("\n".join(str(row[-1]) for row in rows))

    for wanted, index in COMBINATIONS:
        plans.clear()
        jobs.matching(wanted, 2)
        assert any(index in plan for plan in plans), (wanted, plans)
        for plan in plans:
            if database.dialect == "sqlite":
                assert not re.search(
                    r"SCAN (jobs|stage_runs|job_labels)\b(?! USING (COVERING )?INDEX sqlite_auto)", plan
                )
                assert not re.search(r"USE TEMP B-TREE FOR (?!DISTINCT)", plan), plan
            else:
                assert not re.search(r"Seq Scan on (jobs|stage_runs|job_labels)", plan), (wanted, plan)
    plans.clear()
    jobs.jobs_in_progress()
    assert not re.search(r"SCAN jobs|Seq Scan on jobs", plans[0]), plans


def test_the_jobs_of_many_tenants_with_a_label_are_read_in_pieces(jobs: Jobs, database: Database) -> None:
    """However unevenly the tenants have them: each statement walks the label's index, and few read more than shown."""
    tenants = ["most"] * 60 + [f"t{number % 20:02}" for number in range(60)]
    made = [new_job(job_id=job_id_at(number), tenant=each, metadata={"k": "v"}) for number, each in enumerate(tenants)]
    jobs.submit_all([*made, *(new_job(tenant="most", metadata={"k": "w"}) for _ in range(500))])
    ids = [each.job_id for each in made][::-1]
    label, names = label_of("k", "v"), sorted(set(tenants))
    by_owner(database, "ANALYZE")
    with database.begin() as tx:
        found = labelled.LabelledJobs(tx, label, names, "", labelled.ABOVE_ALL)
        assert found.newest(None, 5) == ids[:5]
        assert found.newest(ids[2], 70) == ids[3:73]
        assert found.newest(ids[100], 70) == ids[101:]
        assert labelled.LabelledJobs(tx, label, names, ids[50], ids[40]).newest(ids[45], 9) == ids[46:51]
        assert labelled.LabelledJobs(tx, label, [], "", labelled.ABOVE_ALL).newest(None, 9) == []
        explained = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
        given = listed([{"tenant": "most", "below": ids[0]}])
        query = text(f"{explained} {texts(Path(labelled.__file__).with_suffix('.sql'), database.dialect)['newest']}")
        rows = tx.execute(query, {"label": label, "lines": given, "least": "", "most": "5"}).all()
    plan = "\n".join(str(row[-1]) for row in rows)
    index = "SEARCH found USING PRIMARY KEY (label=? AND tenant=? AND job_id>? AND job_id<?)"
    assert (index if database.dialect == "sqlite" else "Index Only Scan Backward using pk_job_labels") in plan


def test_a_page_looks_at_so_many_jobs_and_says_where_to_go_on(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "LOOKED_AT", 10)
    monkeypatch.setattr(matching, "_FIRST_LOOK", 4)
    monkeypatch.setattr(matching, "LOOKED_FOR_S", 60)
    made = [new_job(job_id=job_id_at(number), tenant="a") for number in range(25)]
    jobs.submit_all([*made, new_job(job_id=job_id_at(100), pipeline=PipelineId("other", "d"))])
    ids = [each.job_id for each in made][::-1]
    wanted = JobFilter(tenant="a", pipeline="none")
    assert jobs.matching(wanted, 5) == ([], ids[9])
    assert jobs.matching(wanted, 5, ids[9]) == ([], ids[19])
    assert jobs.matching(wanted, 5, ids[19]) == ([], None)
    assert jobs.list(wanted).next_cursor == ids[9]
    monkeypatch.setattr(matching, "LOOKED_FOR_S", 0)
    assert jobs.matching(wanted, 5) == ([], ids[3])


def test_metadata_of_many_tenants_want_one_named(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_MOST_TENANTS", 2)
    made = [submit_one(jobs, new_job(tenant=tenant, metadata={"k": "v"})).job_id for tenant in "abc"]
    with pytest.raises(InvalidRequest) as caught:
        jobs.matching(JobFilter(metadata=[("k", "v")]), 5)
    assert caught.value.field == "tenant"
    assert jobs.matching(JobFilter(metadata=[("k", "v")], tenant="b"), 5).ids == [made[1]]


@pytest.mark.parametrize("field", ["pipeline", "stage", "error_code", "tenant"])
def test_a_text_that_no_job_can_have_is_refused(jobs: Jobs, field: str) -> None:
    for value in ("\x00", "\ud800"):
        with pytest.raises(InvalidRequest) as caught:
            jobs.matching(JobFilter(**{field: value}), 5)
        assert caught.value.field == field


def labels(database: Database) -> int:
    with database.begin() as tx:
        return int(tx.execute(text("SELECT count(*) FROM job_labels")).scalar_one())


def test_labels_are_written_where_metadata_are_given_and_go_with_the_job(
    jobs_or_forgetful: Jobs, database: Database
) -> None:
    jobs = jobs_or_forgetful
    submit_one(jobs, new_job())
    assert labels(database) == 0
    job = submit_one(jobs, new_job(metadata=METADATA[2])).job_id
    assert labels(database) == 2
    assert counted_bytes(database) == stored_bytes(database)
    jobs.cancel(job)
    jobs.delete(job)
    assert labels(database) == 0
    assert counted_bytes(database) == stored_bytes(database)
    refused = new_job(metadata={"k": "v"}, idempotency_key="k")
    submit_one(jobs, new_job(idempotency_key="k"))
    jobs.submit_all([refused])
    assert labels(database) == 0


def test_many_jobs_are_cancelled_and_deleted_in_one_transaction(jobs_or_forgetful: Jobs, database: Database) -> None:
    jobs = jobs_or_forgetful
    waiting = [submit_one(jobs, new_job()).job_id for _ in range(3)]
    running = submit_one(jobs, new_job(pipeline=PipelineId("echo", "d"))).job_id
    register(jobs, "first", slots=4)
    claimed = claim(jobs, "first")
    ended = submit_one(jobs, new_job()).job_id
    jobs.cancel(ended)
    everything = [*waiting, running, ended, new_job_id()]
    assert jobs.cancel_all(everything) == {*waiting, running}
    assert jobs.cancel_all(everything) == set()
    assert jobs.get(running).status is JobState.CANCELLING
    assert jobs.delete_all(everything) == {ended}
    jobs.report([done(each, "first") for each in claimed])
    assert {jobs.get(each).status for each in (*waiting, running)} == {JobState.CANCELLED}
    assert jobs.delete_all(everything) == {*waiting, running}
    assert jobs.delete_all(everything) == set()
    assert jobs.list().jobs == []
    assert counted_bytes(database) == stored_bytes(database) == {}
    assert {note.what.split("/")[2] for note in jobs.garbage()} == {*waiting, running, ended}


def test_nothing_is_no_job(jobs: Jobs) -> None:
    assert jobs.cancel_all([]) == jobs.delete_all([]) == set()
