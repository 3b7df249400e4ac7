"""Actions on all jobs that match, as servers perform them: they outlive processes, and change each job once."""

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager

import httpx2
import pytest
from sqlalchemy import select

from omni_jobs.api import action_performer
from omni_jobs.database.seen_tables import ActionRow
from omni_jobs.database.statement import AnyRow
from omni_jobs.jobs import Action, ActionVerb, JobFilter, Jobs, NewAction, new_action_id
from omni_jobs.jobs.crew import action_turns
from omni_jobs.settings import Settings
from omni_jobs.states import JobState
from omni_jobs.tenants.key_store import ApiKeys, NewApiKey
from tests.integration.api_process import ApiProcess
from tests.integration.api_server import BEHIND_A_PROXY, ApiServer, serve
from tests.integration.job_steps import new_job
from tests.services.postgres import by_owner

OWN = {"Sec-Fetch-Site": "same-origin"}
MANY = 3_000
LATE_S = 30.0
LEASE_S = 0.5
_REFUSE = "CREATE TRIGGER refuse BEFORE UPDATE ON actions FOR EACH ROW WHEN (NEW.state = 'failed')"
REFUSALS = {
    "sqlite": [f"{_REFUSE} BEGIN SELECT RAISE(ABORT, 'refused'); END"],
    "postgresql": [
        "CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$",
        f"{_REFUSE} EXECUTE FUNCTION refused()",
    ],
}


def posted(http: httpx2.Client, path: str, *fields: tuple[str, str], **headers: str) -> httpx2.Response:
    return http.post(path, files=[(name, (None, value)) for name, value in fields], headers=OWN | headers)


def fields_of(html: str) -> list[tuple[str, str]]:
    """The hidden fields of the form of a preview."""
    return re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html.replace("&amp;", "&"))


def previewed(http: httpx2.Client, verb: str, query: str, **headers: str) -> list[tuple[str, str]]:
    answer = posted(http, "/jobs/actions", ("verb", verb), ("of", "matching"), ("query", query), **headers)
    assert answer.status_code == 200, answer.text
    return fields_of(answer.text)


def begun(http: httpx2.Client, verb: str, query: str, **headers: str) -> str:
    answer = posted(http, "/jobs/actions/run", *previewed(http, verb, query, **headers), **headers)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].removeprefix("/actions/")


def submitted(jobs: Jobs, count: int, **fields: object) -> list[str]:
    new = [new_job(**fields) for _ in range(count)]
    for begin in range(0, count, 500):
        jobs.submit_all(new[begin : begin + 500])
    return [job.job_id for job in new]


def once(jobs: Jobs, action_id: str, changed: int = 0) -> Action:
    """The action once it has ended, or has changed so many jobs."""
    until = time.monotonic() + LATE_S
    while not (found := jobs.action(action_id)).state.is_final and not 0 < changed <= found.changed:
        assert time.monotonic() < until, found
        time.sleep(0.02)
    return found


def cancels(jobs: Jobs) -> Counter[str]:
    acts = [act for act in jobs.acts(at_most=1000) if act.action == "cancel"]
    return Counter(job_id for act in acts for job_id in act.details["job_ids"])


def test_a_form_that_is_sent_twice_begins_one_action_on_the_jobs_of_its_preview(api: ApiServer) -> None:
    jobs = api.services.jobs
    ids = submitted(jobs, 3)
    fields = previewed(api.http, "cancel", "pipeline=echo")
    [later] = submitted(jobs, 1)
    first, second = (posted(api.http, "/jobs/actions/run", *fields) for _ in range(2))
    assert (first.status_code, first.headers["location"]) == (303, second.headers["location"])
    path = first.headers["location"]
    other = posted(api.http, "/jobs/actions/run", ("verb", "advance"), *fields[1:])
    assert (other.status_code, "has begun an action already" in other.text) == (409, True)
    done = once(jobs, path.removeprefix("/actions/"))
    assert (done.state, done.total, done.changed) == ("done", 3, 3)
    assert cancels(jobs) == Counter(ids)
    assert str(jobs.get(later).status) == "queued"
    for shows in (path, f"/fragments{path}", "/actions", "/fragments/actions"):
        html = api.http.get(shows).text
        assert "3 jobs cancelled" in html, shows
        assert "pipeline=echo" in html, shows
    assert "Stop</button>" not in api.http.get(path).text


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ([("verb", "cancel"), ("query", "")], 422, "body"),
        ([("verb", "cancel"), ("query", "pipeline=echo"), ("action", "../../x")], 422, "action"),
        ([("verb", "cancel"), ("query", "pipeline=echo"), ("before", "soon")], 422, "before"),
        ([("verb", "cancel"), ("query", "pipeline=echo"), ("before", "1e999")], 422, "before"),
        ([("verb", "cancel"), ("query", "status=completed")], 422, "status"),
        ([("verb", "cancel"), ("query", "metadata=" + "x" * 9000)], 422, "query"),
    ],
)
def test_a_wrong_form_begins_nothing(api: ApiServer, fields: list[tuple[str, str]], status: int, field: str) -> None:
    answer = posted(api.http, "/jobs/actions/run", *fields)
    assert (answer.status_code, f"<bdi>{field}</bdi>" in answer.text) == (status, True)
    assert api.services.jobs.actions() == []


def test_hostile_values_of_a_filter_are_text(api: ApiServer) -> None:
    markup = "<img src=x onerror=alert(1)>{{7*7}}\u202e"
    ids = submitted(api.services.jobs, 2, metadata={"k": markup, "n": "a\0b\ud800"})
    begin = [("verb", "cancel"), ("query", str(httpx2.QueryParams({"metadata": f"k={markup}"})))]
    answer = posted(api.http, "/jobs/actions/run", *begin)
    done = once(api.services.jobs, answer.headers["location"].removeprefix("/actions/"))
    assert cancels(api.services.jobs) == Counter(ids)
    assert (done.changed, done.state) == (2, "done")
    for path in ("/actions", answer.headers["location"], "/audit", "/jobs"):
        html = api.http.get(path).text
        assert ("<img src=x" in html, "{7*7}" in html or "%7B7" in html) == (False, True), path


def test_it_is_stopped_by_its_button(api: ApiServer) -> None:
    submitted(api.services.jobs, MANY)
    action = begun(api.http, "cancel", "pipeline=echo")
    once(api.services.jobs, action, changed=1)
    assert f"/actions/{action}" in api.http.get("/jobs").text
    stopped = posted(api.http, f"/actions/{action}/stop", ("x", ""))
    assert (stopped.status_code, stopped.headers["location"]) == (303, f"/actions/{action}")
    shown = api.services.jobs.action(action)
    assert (shown.state, 0 < shown.changed < MANY) == ("stopped", True)
    assert sum(cancels(api.services.jobs).values()) == shown.changed
    html = api.http.get(f"/actions/{action}").text
    assert f"It was stopped by <bdi>anyone, without a key</bdi>, done with {shown.done_with:,} of 3,000 jobs" in html
    assert ">Tenant</th>" not in api.http.get("/actions").text, "nobody is told apart"
    assert api.http.get(f"/actions/action-{'0' * 32}").status_code == 404
    assert api.http.get("/actions/x").status_code == 404


def test_two_servers_and_a_restart_change_each_job_once(settings: Settings, database_url: str) -> None:
    """One of two servers is killed in the middle: the other one goes on within seconds."""
    with closing(ApiProcess(settings, database_url)) as process, serve(settings) as api:
        jobs = api.services.jobs
        ids = submitted(jobs, MANY)
        process.start()
        with httpx2.Client(base_url=process.url, trust_env=False, timeout=30) as http:
            actions = [begun(http, "cancel", f"created_before={before}") for before in ("2100-01-01T00:00:00Z", "4e9")]
        for action in actions:
            once(jobs, action, changed=1)
        process.kill()
        done = [once(jobs, action) for action in actions]
        assert cancels(jobs) == Counter(ids)
    assert [action.state for action in done] == ["done", "done"]
    assert sum(action.changed for action in done) == MANY
    assert all(action.done_with <= MANY for action in done)


def test_a_retry_waits_for_room_in_the_backlog(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_performer, "_WAIT_S", 0.1)
    monkeypatch.setattr(action_performer, "_LOOK_S", 0.1)
    with serve(settings.model_copy(update={"max_queued_jobs_per_tenant": 2})) as api:
        jobs = api.services.jobs
        ids = submitted(jobs, 6)
        jobs.cancel_all(ids)
        gone = ids[0]
        action = begun(api.http, "retry", "status=cancelled")
        told = once(jobs, action, changed=2)
        until = time.monotonic() + LATE_S
        while (told := jobs.action(action)).trouble is None:
            assert time.monotonic() < until
        assert (told.trouble.code, told.changed, told.state) == ("too_many_jobs", 2, "running")
        assert "goes on by itself" in api.http.get(f"/actions/{action}").text
        jobs.delete(gone)
        while not (told := jobs.action(action)).state.is_final:
            assert time.monotonic() < until
            jobs.cancel_all(ids)  # makes room; those that it has retried are behind it
        assert (told.state, told.changed, told.done_with) == ("done", 5, 5)
        assert sorted(act.target for act in jobs.acts(at_most=99) if act.action == "retry") == sorted(ids[1:])


def test_a_retry_goes_on_with_the_jobs_of_others_while_one_tenant_has_no_room(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_performer, "_WAIT_S", 0.1)
    monkeypatch.setattr(action_performer, "_LOOK_S", 0.1)
    with serve(settings.model_copy(update={"max_queued_jobs_per_tenant": 2, **BEHIND_A_PROXY})) as api:
        jobs = api.services.jobs
        few, many = submitted(jobs, 2, tenant="acme"), submitted(jobs, 5, tenant="globex")
        jobs.cancel_all(few + many)
        action = begun(api.http, "retry", "status=cancelled")
        once(jobs, action, changed=4)
        assert {str(jobs.get(job_id).status) for job_id in few} == {"queued"}
        until = time.monotonic() + LATE_S
        while (told := jobs.action(action)).trouble is None:
            assert time.monotonic() < until
        assert (told.trouble.code, told.changed, told.state) == ("too_many_jobs", 4, "running")
        while not (told := jobs.action(action)).state.is_final:
            assert time.monotonic() < until
            jobs.cancel_all(many)  # makes room; those that it has retried are behind it
        assert (told.state, told.changed, told.skipped) == ("done", 7, [])
        retried = [act.target for act in jobs.acts(at_most=99) if act.action == "retry"]
        assert sorted(retried) == sorted(few + many)
        jobs.begin_action(NewAction(new_action_id(), "cancel", JobFilter(tenant="acme"), "q", "proxy", "acme"))
        html = api.http.get("/actions").text
        assert (">Tenant</th>" in html, "<bdi>acme</bdi>" in html, ">all</span>" in html) == (True, True, True)


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that end soon."""
    monkeypatch.setattr(action_turns, "ACTION_LEASE_S", LEASE_S)
    monkeypatch.setattr(action_performer, "_RENEWED_S", LEASE_S / 10)
    monkeypatch.setattr(action_performer, "_LOOK_S", 0.1)


@contextmanager
def threads_held(api: ApiServer) -> Iterator[None]:
    """Others keep the thread on which the actions' steps are taken, within the block."""
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        free.wait(LATE_S)

    holds = asyncio.run_coroutine_threadsafe(api.services.action_threads.run(None, hold), api.loop)
    held.wait(LATE_S)
    try:
        yield
    finally:
        free.set()
        holds.result(LATE_S)


def begun_now(api: ApiServer, verb: ActionVerb, states: Collection[JobState]) -> str:
    """An action that a server has taken."""
    new = NewAction(new_action_id(), verb, JobFilter(states=frozenset(states)), "q", "anyone", None)
    api.services.jobs.begin_action(new)
    api.loop.call_soon_threadsafe(api.services.actions.wake)
    until = time.monotonic() + LATE_S
    while row_of(api, new.id).holder is None:
        assert time.monotonic() < until
    return new.id


def row_of(api: ApiServer, action_id: str) -> AnyRow:
    return api.services.db.read(lambda tx: tx.execute(select(ActionRow).where(ActionRow.id == action_id)).one())


@pytest.mark.usefixtures("leases")
def test_a_step_that_takes_longer_than_the_lease_keeps_it(api: ApiServer) -> None:
    ids = submitted(api.services.jobs, 3)
    with threads_held(api):
        action = begun_now(api, "cancel", [JobState.QUEUED])
        first, until = row_of(api, action), time.monotonic() + LATE_S
        while (row := row_of(api, action)).lease_until < first.lease_until + 2 * LEASE_S:
            assert time.monotonic() < until, "the lease is not renewed"
        assert (row.holder, row.steps) == (first.holder, 0)
        assert api.services.jobs.take_action() is None
    done = once(api.services.jobs, action)
    assert (done.state, done.changed, cancels(api.services.jobs)) == ("done", 3, Counter(ids))


@pytest.mark.usefixtures("leases")
def test_an_action_whose_step_hangs_goes_to_others(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_performer, "_HANGS_S", LEASE_S)
    jobs = api.services.jobs
    submitted(jobs, 1)
    with threads_held(api):
        action = begun_now(api, "cancel", [JobState.QUEUED])
        first, until = row_of(api, action), time.monotonic() + LATE_S
        while (row := row_of(api, action)).holder == first.holder:
            assert time.monotonic() < until
            if (turn := jobs.take_action()) is not None:  # unless the same server was quicker
                assert turn.id == action
        assert row.steps == 0
    assert once(jobs, action).changed == 1


def test_refusals_are_noted_as_they_come(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a retry that is refused slowly, job after job, shows its progress, and does not begin anew."""
    monkeypatch.setattr(action_performer, "_STEP_S", 0.0)
    jobs = api.services.jobs
    ids = submitted(jobs, 3)
    action = begun_now(api, "retry", [JobState.QUEUED])  # which none of them allows
    done = once(jobs, action)
    [why] = done.skipped
    assert (done.state, done.changed, why.count, why.code, why.job_id) == ("done", 0, 3, "conflict", ids[-1])
    assert row_of(api, action).steps == 1 + len(ids) + 1, "a count, a step for each, and the end"


def test_a_fault_at_the_end_of_a_turn_is_told_and_ends_no_other_action(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the database refuses to note that an action fails, of which the filter is no text."""
    jobs, database = api.services.jobs, api.services.db
    by_owner(database, *REFUSALS[database.dialect])
    new = NewAction(new_action_id(), "cancel", JobFilter(pipeline="\0"), "q", "anyone", None)
    jobs.begin_action(new)
    api.loop.call_soon_threadsafe(api.services.actions.wake)
    until = time.monotonic() + LATE_S
    while f"ending a turn of action {new.id}" not in caplog.text:
        assert time.monotonic() < until
        time.sleep(0.01)
    submitted(jobs, 1)
    assert once(jobs, begun(api.http, "cancel", "pipeline=echo")).changed == 1


def signed_in(api: ApiServer, key: NewApiKey) -> str:
    answer = api.http.post("/v1/session", headers={"Authorization": f"Bearer {key.key}"})
    api.http.cookies.clear()
    return str(answer.headers["set-cookie"].partition(";")[0])


def test_it_acts_for_its_tenant_and_ends_with_its_key(settings: Settings, keys: ApiKeys) -> None:
    own, other = (keys.create(tenant, ["read", "submit"]) for tenant in ("acme", "globex"))
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        jobs = api.services.jobs
        ids, others = (submitted(jobs, count, tenant=tenant) for count, tenant in ((MANY, "acme"), (3, "globex")))
        own_cookie, other_cookie = (signed_in(api, key) for key in (own, other))
        action = begun(api.http, "cancel", "pipeline=echo", Cookie=own_cookie)
        once(jobs, action, changed=1)
        for path in (f"/actions/{action}", f"/fragments/actions/{action}"):
            assert api.http.get(path, headers={"Cookie": other_cookie}).status_code == 404
        assert posted(api.http, f"/actions/{action}/stop", ("x", ""), Cookie=other_cookie).status_code == 404
        assert action not in api.http.get("/actions", headers={"Cookie": other_cookie}).text
        assert action not in api.http.get("/jobs", headers={"Cookie": other_cookie}).text
        ended = once(jobs, action)
        assert (ended.state, ended.changed, ended.actor) == ("done", MANY, own.id)
        assert cancels(jobs) == Counter(ids)
        assert {str(jobs.get(job_id).status) for job_id in others} == {"queued"}
        keys.revoke(own.id)
        wanted = JobFilter(states=frozenset([JobState.QUEUED]), tenant="acme")
        [left] = submitted(jobs, 1, tenant="acme")
        for actor in (own.id, other.id, "anyone"):
            jobs.begin_action(NewAction(new_action_id(), "cancel", wanted, "q", actor, "acme"))
            api.loop.call_soon_threadsafe(api.services.actions.wake)
            failed = once(jobs, jobs.actions(at_most=1)[0].id)
            assert failed.trouble is not None
            assert (failed.state, failed.changed, failed.trouble.code) == ("failed", 0, "unauthenticated")
        assert str(jobs.get(left).status) == "queued"
