"""Actions of the dashboard over HTTP: who may do them, what a preview says, and what becomes of jobs meanwhile."""

import re
import time

import httpx2
import pytest

from omni_jobs.jobs import NewWorker
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from tests.integration.api_server import ApiServer, serve
from tests.integration.served_jobs import completed, failed

OWN = {"Sec-Fetch-Site": "same-origin"}
ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
NOWHERE = "job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f"


def submitted(api: ApiServer, **fields: object) -> str:
    return str(api.http.post("/v1/jobs", json=ECHO | fields).json()["id"])


def posted(api: ApiServer, path: str, *fields: tuple[str, str], **headers: str) -> httpx2.Response:
    form = [(name, (None, value)) for name, value in fields]
    return api.http.post(path, files=form, headers=OWN | headers)


def fields_of(html: str) -> list[tuple[str, str]]:
    """The hidden fields of the form that the page would send next."""
    return re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html.replace("&amp;", "&"))


def ended(api: ApiServer, begun: httpx2.Response) -> str:
    """The page of an action that was begun, once it has ended."""
    page, until = begun.headers["location"], time.monotonic() + 30
    while not api.services.jobs.action(page.removeprefix("/actions/")).state.is_final:
        assert time.monotonic() < until
        time.sleep(0.01)
    return api.http.get(page).text


def status_of(api: ApiServer, job_id: str) -> str:
    return str(api.services.jobs.get(job_id).status)


def next_claimed(api: ApiServer) -> str:
    echo = api.services.pipelines["echo"]
    new = NewWorker("w", "w", echo.stage_id("first"), "host", 1, 9, echo.version)
    api.services.jobs.register_worker(new, 60.0)
    return api.services.jobs.claim("w", 1).claims[0].job_id


def test_a_preview_says_how_many_and_which_and_changes_nothing(api: ApiServer) -> None:
    jobs = [submitted(api, metadata={"project": "sea"}) for _ in range(3)]
    other = submitted(api)
    preview = posted(api, "/jobs/actions", ("verb", "cancel"), ("of", "matching"), ("query", "metadata=project%3Dsea"))
    assert preview.status_code == 200
    assert "Cancel 3 jobs?" in preview.text
    assert all(job in preview.text for job in jobs)
    assert other not in preview.text
    assert {status_of(api, job) for job in jobs} == {"queued"}
    begun = posted(api, "/jobs/actions/run", *fields_of(preview.text))
    assert "3 jobs cancelled" in ended(api, begun)
    assert {status_of(api, job) for job in jobs} == {"cancelled"}
    assert status_of(api, other) == "queued"


def test_chosen_jobs_that_ended_meanwhile_are_told_to_both(api: ApiServer) -> None:
    ended, gone, queued = submitted(api), submitted(api), submitted(api)
    preview = posted(api, "/jobs/actions", ("verb", "cancel"), *(("job", each) for each in (ended, gone, queued)))
    assert "Cancel 3 jobs?" in preview.text
    completed(api, ended)
    api.services.jobs.cancel(gone)
    api.services.jobs.delete(gone)
    done = posted(api, "/jobs/actions/run", *fields_of(preview.text))
    assert "1 job cancelled" in done.text
    assert "the job is completed already" in done.text
    assert status_of(api, queued) == "cancelled"
    other_tab = posted(api, "/jobs/actions/run", ("verb", "cancel"), ("job", queued))
    assert ("0 jobs cancelled" in other_tab.text, "the job is cancelled already" in other_tab.text) == (True, True)


def test_jobs_are_advanced_alone_chosen_and_by_a_filter(api: ApiServer) -> None:
    jobs = [submitted(api, metadata={"n": str(n)}) for n in range(5)]
    assert posted(api, f"/jobs/{jobs[4]}/advance", ("x", "")).headers["location"] == f"/jobs/{jobs[4]}"
    done = posted(api, "/jobs/actions/run", ("verb", "advance"), ("job", jobs[3]))
    assert "1 job advanced" in done.text
    form = [("verb", "advance"), ("of", "matching"), ("query", "metadata=n%3D2")]
    preview = posted(api, "/jobs/actions", *form)
    assert ("Advance 1 job?" in preview.text, jobs[2] in preview.text) == (True, True)
    assert "1 job advanced" in ended(api, posted(api, "/jobs/actions/run", *fields_of(preview.text)))
    assert [next_claimed(api) for _ in jobs] == [jobs[2], jobs[3], jobs[4], jobs[0], jobs[1]]
    refused = posted(api, f"/jobs/{jobs[0]}/advance", ("x", ""))
    assert (refused.status_code, "begun or ended" in refused.text) == (409, True)


def test_retry_and_delete_of_chosen_jobs(api: ApiServer) -> None:
    job = submitted(api)
    failed(api, job)
    done = posted(api, "/jobs/actions/run", ("verb", "retry"), ("job", job))
    assert ("1 job retried" in done.text, status_of(api, job)) == (True, "queued")
    api.services.jobs.cancel(job)
    done = posted(api, "/jobs/actions/run", ("verb", "delete"), ("job", job))
    assert "1 job deleted" in done.text
    assert api.http.get(f"/jobs/{job}").status_code == 404


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ([("verb", "explode"), ("job", NOWHERE)], "verb"),
        ([("verb", "cancel")], "job"),
        ([("verb", "cancel"), ("job", "x")], "job"),
        ([("verb", "cancel"), ("of", "matching"), ("query", "")], "body"),
        ([("verb", "cancel"), ("of", "matching"), ("query", "x=1")], "x"),
        ([("verb", "cancel"), ("of", "matching"), ("query", "status=completed")], "status"),
        ([("verb", "delete"), ("verb", "cancel"), ("job", NOWHERE)], "verb"),
    ],
)
def test_a_wrong_form_is_a_page_that_names_the_field(api: ApiServer, fields: list[tuple[str, str]], field: str) -> None:
    answer = posted(api, "/jobs/actions", *fields)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "text/html; charset=utf-8")
    assert f"<bdi>{field}</bdi>" in answer.text


def test_a_job_is_cancelled_retried_from_a_stage_and_forked(api: ApiServer) -> None:
    job = submitted(api, keep_payloads=True)
    assert posted(api, f"/jobs/{job}/cancel", ("x", "")).headers["location"] == f"/jobs/{job}"
    assert status_of(api, job) == "cancelled"
    assert posted(api, f"/jobs/{job}/retry", ("from_stage", "")).status_code == 303
    completed(api, job)
    fork = posted(api, f"/jobs/{job}/fork", ("from_stage", "second"), ("changes", "{}"))
    assert fork.status_code == 303, fork.text
    made = api.services.jobs.get(fork.headers["location"].removeprefix("/jobs/"))
    assert made.forked_from == job
    for changes in ("[]", "{", '{"messages": []}'):
        wrong = posted(api, f"/jobs/{job}/fork", ("from_stage", "second"), ("changes", changes))
        assert (wrong.status_code, "<h1>422</h1>" in wrong.text) == (422, True)


def test_a_retry_is_offered_from_the_stages_whose_inputs_are_kept(api: ApiServer) -> None:
    for keeps in (True, False):
        job = submitted(api, keep_payloads=keeps)
        completed(api, job)
        page = api.http.get(f"/jobs/{job}").text
        [choices] = re.findall(r'id="retry-from">(.*?)</select>', page, re.DOTALL)
        offered = re.findall(r'value="(\w*)"', choices)
        assert offered == (["first", "second"] if keeps else ["first"])
        assert ("From other stages it cannot be retried: " in page) is not keeps
        answers = [
            posted(api, f"/jobs/{job}/retry", ("from_stage", stage)).status_code for stage in ("second", "first")
        ]
        assert answers == ([303, 409] if keeps else [409, 303])  # the first retry leaves nothing to the second


def test_no_form_without_an_origin_changes_anything(api: ApiServer) -> None:
    job = submitted(api)
    form = [("verb", (None, "cancel")), ("job", (None, job))]
    for path in (f"/jobs/{job}/cancel", "/jobs/actions/run"):
        answer = api.http.post(path, files=form)
        assert answer.status_code == 403, path
    assert status_of(api, job) == "queued"


def test_the_audit_names_the_key_behind_a_session(settings: Settings, keys: ApiKeys) -> None:
    key = keys.create("acme", ["read", "submit"])
    bearer = {"Authorization": f"Bearer {key.key}"}
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        signed_in = api.http.post("/v1/session", headers=bearer)
        cookie = signed_in.headers["set-cookie"].partition(";")[0]
        job = api.http.post("/v1/jobs", json=ECHO, headers=bearer).json()["id"]
        assert posted(api, f"/jobs/{job}/cancel", Cookie=cookie).status_code == 303
        [act] = api.services.jobs.acts(target=job)
    assert (act.actor, act.action, act.tenant) == (key.id, "cancel", "acme")


def test_who_may_only_read_finds_no_button_and_no_form_that_works(settings: Settings, keys: ApiKeys) -> None:
    made = {
        name: {"Authorization": f"Bearer {keys.create(tenant, scopes).key}"}
        for name, tenant, scopes in (
            ("writer", "acme", ["submit"]),
            ("reader", "acme", ["read"]),
            ("other", "globex", ["read", "submit"]),
        )
    }
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        job = api.http.post("/v1/jobs", json=ECHO, headers=made["writer"]).json()["id"]
        cookies = {}
        for name in ("reader", "other"):
            answer = api.http.post("/v1/session", headers=made[name])
            cookies[name] = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
            api.http.cookies.clear()
        for path in ("/jobs", f"/jobs/{job}"):
            html = api.http.get(path, headers=cookies["reader"]).text
            assert job in html
            assert re.findall(r'<form method="post" action="(?!/signout)', html) == []
            assert 'type="checkbox"' not in html
        alone = [f"/jobs/{job}/{verb}" for verb in ("cancel", "advance", "retry", "fork")]
        paths = (*alone, "/jobs/actions", "/jobs/actions/run")
        for path in paths:
            answer = posted(api, path, ("verb", "cancel"), ("job", job), **cookies["reader"])
            assert answer.status_code == 403, path
        assert posted(api, f"/jobs/{job}/cancel", ("x", ""), **cookies["other"]).status_code == 404
        assert job not in api.http.get("/jobs", headers=cookies["other"]).text
        assert api.http.get(f"/jobs/{job}", headers=cookies["other"]).status_code == 404
        assert status_of(api, job) == "queued"
