"""The audit: each action that changed something is there once, by the transaction that did it, for a time."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, InvalidRequest, NotFound
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Jobs
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.job_steps import ForgetfulDatabase, new_job, submit_one

STAGE = StageId(PipelineId("echo", "d"), "first")


def noted(jobs: Jobs, **asked: Any) -> list[tuple[str, str, str, str | None]]:
    """Actor, action, target and tenant of each action, the oldest first."""
    return [(each.actor, each.action, each.target, each.tenant) for each in reversed(jobs.acts(**asked))]


def test_each_action_on_a_job_is_noted_once(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    job_id = submit_one(jobs, new_job(tenant="one")).job_id
    jobs.cancel(job_id, "one", by="key-1")
    jobs.cancel(job_id, by="key-2")  # it has ended: nothing changes
    jobs.retry(job_id, by="key-1")
    with pytest.raises(Conflict):
        jobs.retry(job_id, by="key-1")
    with pytest.raises(Conflict):
        jobs.delete(job_id, by="key-1")
    jobs.cancel(job_id)  # by the system itself
    jobs.delete(job_id, by="key-3")
    assert noted(jobs) == [
        ("key-1", "cancel", job_id, "one"),
        ("key-1", "retry", job_id, "one"),
        ("key-3", "delete", job_id, "one"),
    ]
    assert [each.details for each in jobs.acts()] == [{}, {"from_stage": None}, {}]
    with pytest.raises(NotFound):
        jobs.cancel("job-unknown", by="key-1")
    assert len(jobs.acts()) == 3


def test_an_action_on_many_jobs_names_each(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    ids = sorted(submit_one(jobs, new_job(tenant=tenant)).job_id for tenant in ("one", "one", "two"))
    assert jobs.cancel_all(ids[:2], by="key-1") == set(ids[:2])
    assert jobs.cancel_all(ids, by="key-1") == {ids[2]}
    jobs.delete_all(ids, by="key-1")
    newest = jobs.acts()
    done = [("delete", ids[0]), ("cancel", ids[2]), ("cancel", ids[0])]
    assert [(each.action, each.target) for each in newest] == done
    assert newest[0].details == {"job_ids": ids}
    assert newest[0].tenant is None, "they are of several"
    assert newest[2].details == {"job_ids": ids[:2]}


def test_a_pause_and_a_resume_are_noted_where_they_change_something(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    for act in (jobs.resume, jobs.pause, jobs.pause, jobs.resume, jobs.resume):
        act(STAGE, by="key-1")
    assert noted(jobs) == [("key-1", "pause", "echo.first", None), ("key-1", "resume", "echo.first", None)]


@pytest.mark.parametrize("kind", [Database, ForgetfulDatabase])
def test_keys_and_limits(database_url: str, kind: Callable[[str], Database]) -> None:
    database = kind(database_url)
    jobs, keys, tenants = Jobs(database), ApiKeys(database), Tenants(database)
    if kind is Database:
        tenants.create("acme", 2.0, {"running_jobs": 3})
    else:
        with pytest.raises(Conflict):  # which an earlier try has made
            tenants.create("acme", 2.0, {"running_jobs": 3})
    tenants.set("acme", limits={"running_jobs": None})
    key = keys.create("acme", ["read"], name="ci")
    keys.revoke(key.id)
    keys.revoke(key.id)
    assert noted(jobs, tenant="acme") == [
        ("command", "create_tenant", "acme", "acme"),
        ("command", "set_tenant", "acme", "acme"),
        ("command", "create_key", key.id, "acme"),
        ("command", "revoke_key", key.id, "acme"),
    ]
    details = [each.details for each in reversed(jobs.acts())]
    assert details[0] == {"weight": 2.0, "limits": {"running_jobs": 3}}
    assert details[1] == {"weight": 2.0, "limits": {}}
    assert details[2] == {"name": "ci", "scopes": ["read"]}
    assert key.key not in str(details)
    database.close()


def test_pages_and_filters(jobs: Jobs) -> None:
    ids = [submit_one(jobs, new_job(tenant=tenant)).job_id for tenant in ("one", "two", "one")]
    for job_id in ids:
        jobs.cancel(job_id, by="key-1")
    assert [each[2] for each in noted(jobs, tenant="one")] == [ids[0], ids[2]]
    assert [each[2] for each in noted(jobs, target=ids[1])] == [ids[1]]
    jobs.retry(ids[0], by="key-1")
    assert [each[2] for each in noted(jobs, action="retry")] == [ids[0]]
    second, third = reversed(jobs.acts(action="cancel")[:2])
    assert [each[2] for each in noted(jobs, action="cancel", since=second.at)] == [second.target, third.target]
    seen, before = [], None
    while page := jobs.acts(action="cancel", at_most=1, before=before):
        seen += [each.target for each in page]
        before = (page[-1].at, page[-1].id)
    assert seen == ids[::-1]
    for wrong in ({"at_most": 0}, {"at_most": 1001}, {"target": "a\0"}):
        with pytest.raises(InvalidRequest):
            jobs.acts(**wrong)  # type: ignore[arg-type]


def test_it_is_kept_for_a_time(jobs: Jobs) -> None:
    for _ in range(2):
        jobs.pause(STAGE, by="key-1")
        jobs.resume(STAGE, by="key-1")
    with jobs._db.begin() as tx:
        tx.execute(text("UPDATE audit SET at = at - 1000 WHERE action = 'pause'"))
    assert jobs.prune_audit(500.0) == 2
    assert jobs.prune_audit(500.0) == 0
    assert [each[1] for each in noted(jobs)] == ["resume", "resume"]
