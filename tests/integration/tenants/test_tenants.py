"""Tenants and their keys in SQL, on both databases: made, changed and deleted, also by two operators at once."""

import hashlib
import math
import time
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text

from omni_jobs.database.audit import Act
from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, InvalidRequest, NotFound, OmniJobsError, Unauthenticated
from omni_jobs.jobs import Jobs, SubmitResult
from omni_jobs.jobs.life import submit
from omni_jobs.tenants import tenant_store
from omni_jobs.tenants.caller import Caller, Scope
from omni_jobs.tenants.key_store import ApiKeys, digest_of
from omni_jobs.tenants.tenant_limits import Limits
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.job_steps import (
    new_job,
    submit_one,
)

WAIT_S = 30.0


@pytest.fixture
def tenants(database: Database) -> Tenants:
    return Tenants(database)


@pytest.fixture
def keys(database: Database) -> ApiKeys:
    return ApiKeys(database)


def digest(key: str) -> str:
    found = digest_of(key)
    assert found is not None
    return found


def find(keys: ApiKeys, key: str) -> tuple[Caller | None, float]:
    return keys.find_all([digest(key)]).get(digest(key), (None, math.inf))


# Tenants


def test_a_tenant_is_made_changed_and_deleted(tenants: Tenants) -> None:
    made = tenants.create("acme", 3.0, {"queued_jobs": 10, "running_jobs": 2})
    assert (made.weight, made.limits) == (3.0, Limits(queued_jobs=10, running_jobs=2))
    changed = tenants.set("acme", limits={"running_jobs": None, "media_bytes": 5})
    assert (changed.weight, changed.limits) == (3.0, Limits(queued_jobs=10, media_bytes=5))
    assert tenants.set("acme", weight=0.5).limits == changed.limits
    assert [tenant.name for tenant in tenants.all()] == ["acme"]
    assert tenants.limits_of(["acme", "globex"]) == {"acme": changed.limits}
    tenants.delete("acme")
    assert (tenants.all(), tenants.limits_of(["acme"])) == ([], {})


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e9, 0.0009, 1000.1, math.nan, math.inf, -math.inf])
def test_a_weight_out_of_range_is_refused(tenants: Tenants, weight: float) -> None:
    tenants.create("acme")
    for attempt in (lambda: tenants.create("other", weight), lambda: tenants.set("acme", weight)):
        with pytest.raises(InvalidRequest) as caught:
            attempt()
        assert caught.value.field == "weight"
    assert [(tenant.name, tenant.weight) for tenant in tenants.all()] == [("acme", 1.0)]


@pytest.mark.parametrize("weight", [0.001, 1, 1000])
def test_the_ends_of_the_range_are_taken(tenants: Tenants, weight: float) -> None:
    assert tenants.create("acme", weight).weight == weight


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"speed": 1}, "speed"),
        ({"queued_jobs": -1}, "queued_jobs"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"media_bytes": 2**60}, "media_bytes"),
        ({"running_jobs": True}, "running_jobs"),
    ],
)
def test_a_wrong_limit_is_named(tenants: Tenants, limits: dict[str, Any], field: str) -> None:
    tenants.create("acme")
    for attempt in (lambda: tenants.create("other", 1.0, limits), lambda: tenants.set("acme", limits=limits)):
        with pytest.raises(InvalidRequest) as caught:
            attempt()
        assert caught.value.field == field


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "ä", "a/b", "a\n"])
def test_a_wrong_name_is_refused(tenants: Tenants, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tenants.create(name)
    assert caught.value.field == "name"


def test_an_unknown_tenant_is_not_found(tenants: Tenants, keys: ApiKeys) -> None:
    for attempt in (
        lambda: tenants.set("acme", 2.0),
        lambda: tenants.delete("acme"),
        lambda: keys.create("acme", ["read"]),
    ):
        with pytest.raises(NotFound):
            attempt()


def test_a_tenant_with_unfinished_jobs_stays(database: Database, tenants: Tenants, keys: ApiKeys) -> None:
    jobs = Jobs(database)
    tenants.create("acme")
    key = keys.create("acme", ["read"])
    job = submit_one(jobs, new_job(tenant="acme"))
    with pytest.raises(Conflict, match="1 unfinished jobs"):
        tenants.delete("acme")
    assert find(keys, key.key)[0] is not None
    jobs.cancel(job.job_id)
    tenants.delete("acme")
    assert find(keys, key.key)[0] is None
    assert jobs.get(job.job_id).tenant == "acme"


def test_a_first_submit_that_goes_on_is_waited_for(database: Database, tenants: Tenants) -> None:
    """So the tenant stays: it has an unfinished job then."""
    tenants.create("acme")
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as tx:
            (submitted,) = submit.submit(tx, [submit.rows_of(new_job(tenant="acme"))], only_known_tenants=True)
            assert isinstance(submitted, SubmitResult)
            deleted = pool.submit(tenants.delete, "acme")
            wait([deleted], 1.0)
        with pytest.raises(Conflict, match="1 unfinished jobs"):
            deleted.result(WAIT_S)
    assert tenants.limits_of(["acme"])


def test_a_first_submit_waits_for_who_deletes_its_tenant(database: Database, tenants: Tenants) -> None:
    jobs = Jobs(database, only_known_tenants=True)
    tenants.create("acme")
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as tx:
            tenant_store._delete(tx, "acme", Act("command", "delete_tenant"))
            submitted = pool.submit(submit_one, jobs, new_job(tenant="acme"))
            wait([submitted], 1.0)
        with pytest.raises(Unauthenticated):
            submitted.result(WAIT_S)


def at_once(*calls: Any) -> list[Any]:
    """Call all on threads; return their results, or their errors of ours."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    errors = [future.exception() for future in futures]
    assert all(error is None or isinstance(error, OmniJobsError) for error in errors), errors
    return [error or future.result() for error, future in zip(errors, futures, strict=True)]


def test_of_two_operators_who_make_a_tenant_one_does(tenants: Tenants) -> None:
    for number in range(10):
        made = at_once(*[lambda name=f"t{number}": tenants.create(name)] * 2)
        assert sorted(type(each).__name__ for each in made) == ["Conflict", "TenantView"]


def test_two_operators_who_set_two_limits_set_both(tenants: Tenants) -> None:
    for number in range(10):
        name = f"t{number}"
        tenants.create(name)
        at_once(
            lambda name=name: tenants.set(name, limits={"queued_jobs": 1}),
            lambda name=name: tenants.set(name, limits={"running_jobs": 2}),
            lambda name=name: tenants.set(name, 7.0),
        )
        (tenant,) = [each for each in tenants.all() if each.name == name]
        assert (tenant.weight, tenant.limits) == (7.0, Limits(queued_jobs=1, running_jobs=2))


def test_a_key_made_while_its_tenant_is_deleted_goes_with_it(tenants: Tenants, keys: ApiKeys) -> None:
    for number in range(10):
        name = f"t{number}"
        tenants.create(name)
        at_once(lambda name=name: tenants.delete(name), lambda name=name: keys.create(name, ["read"]))
        assert (tenants.limits_of([name]), keys.all(name)) == ({}, [])


# Keys


def test_a_key_is_found_by_its_digest_alone(database: Database, tenants: Tenants, keys: ApiKeys) -> None:
    tenants.create("acme", limits={"queued_jobs": 3})
    made = keys.create("acme", ["submit", "read"], name="night run")
    assert len(made.key) == 48
    caller, lives_s = find(keys, made.key)
    assert caller is not None
    assert (caller.tenant, caller.limits, caller.sees) == ("acme", Limits(queued_jobs=3), "acme")
    assert [scope for scope in Scope if caller.may(scope)] == [Scope.SUBMIT, Scope.READ]
    assert lives_s == math.inf
    with database.begin() as tx:
        row = tx.execute(text("SELECT * FROM api_keys")).one()._asdict()
    assert row["digest"] == hashlib.sha256(made.key.encode()).hexdigest()
    assert made.key not in str(row)
    assert made.hint == made.key[:9]


def test_two_keys_are_never_alike(tenants: Tenants, keys: ApiKeys) -> None:
    tenants.create("acme")
    made = [keys.create("acme", ["admin"]) for _ in range(20)]
    assert len({key.key for key in made}) == len({key.id for key in made}) == 20
    caller, _ = find(keys, made[0].key)
    assert caller is not None
    assert all(caller.may(scope) for scope in Scope)


def test_a_revoked_key_is_not_found(tenants: Tenants, keys: ApiKeys) -> None:
    tenants.create("acme")
    made, other = keys.create("acme", ["read"]), keys.create("acme", ["read"])
    first = keys.revoke(made.id)
    assert first.revoked_at is not None
    assert keys.revoke(made.id) == first  # again: nothing changes
    assert find(keys, made.key)[0] is None
    assert find(keys, other.key)[0] is not None
    with pytest.raises(NotFound):
        keys.revoke("key-0000000000000000")


def test_a_key_expires_by_the_databases_clock(database: Database, tenants: Tenants, keys: ApiKeys) -> None:
    tenants.create("acme")
    made = keys.create("acme", ["read"], expires_in_s=60.0)
    _, lives_s = find(keys, made.key)
    assert 0 < lives_s <= 60
    with database.begin() as tx:  # as if the database's clock had gone on
        tx.execute(text("UPDATE api_keys SET expires_at = expires_at - 60"))
    assert find(keys, made.key)[0] is None


def test_hosts_whose_clocks_lie_an_hour_apart_agree_on_a_key(
    tenants: Tenants, keys: ApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants.create("acme")
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() - 3600)
    made = keys.create("acme", ["read"], expires_in_s=600.0)
    monkeypatch.setattr(time, "time", lambda: here() + 3600)
    caller, lives_s = find(keys, made.key)
    assert caller is not None
    assert 500 < lives_s <= 600
    keys.revoke(made.id)
    monkeypatch.setattr(time, "time", lambda: here() - 3600)
    assert find(keys, made.key)[0] is None


def test_its_use_is_noted_to_the_hour(database: Database, tenants: Tenants, keys: ApiKeys) -> None:
    tenants.create("acme")
    made = keys.create("acme", ["read"])
    assert made.used_at is None
    find(keys, made.key)
    [used] = keys.all("acme")
    assert used.used_at is not None
    assert (used.used_at.minute, used.used_at.second) == (0, 0)
    with database.begin() as tx:
        tx.execute(text("UPDATE api_keys SET used_at = 0"))
    find(keys, made.key)
    [used] = keys.all()
    assert used.used_at is not None
    assert used.used_at > datetime(2000, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["read", "everything"]}, "scopes"),
        ({"scopes": ["read"], "name": ""}, "name"),
        ({"scopes": ["read"], "name": "a\nb"}, "name"),
        ({"scopes": ["read"], "expires_in_s": 0.0}, "expires_in"),
        ({"scopes": ["read"], "expires_in_s": -1.0}, "expires_in"),
        ({"scopes": ["read"], "expires_in_s": math.nan}, "expires_in"),
    ],
)
def test_a_wrong_key_is_not_made(tenants: Tenants, keys: ApiKeys, given: dict[str, Any], field: str) -> None:
    tenants.create("acme")
    with pytest.raises(InvalidRequest) as caught:
        keys.create("acme", **given)
    assert caught.value.field == field
    assert keys.all() == []
