"""The sign-in in a browser, with JavaScript and without."""

import re

import pytest
from playwright.sync_api import Browser, Route, expect

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.browser.seeded_jobs import Hands
from tests.browser.visitor import Visitor, check_looks
from tests.integration.api_server import ApiServer


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"auth": "keys"})


@pytest.fixture
def key(settings: Settings) -> str:
    database = Database(settings.resolved_database_url)
    Tenants(database).create("acme")
    key = ApiKeys(database).create("acme", ["read"]).key
    database.close()
    return key


def test_the_sign_in_looks_well(key: str, visitor: Visitor) -> None:
    check_looks(visitor, "/signin")


def test_a_wrong_key_is_refused_in_a_sentence(key: str, visitor: Visitor) -> None:
    visitor.page.goto("/signin")
    visitor.page.get_by_label("API key").fill("omni_" + "x" * 43)
    visitor.page.get_by_role("button", name="Sign in").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("API key")
    assert visitor.faults() == []


def test_a_key_signs_in_also_without_javascript(key: str, api: ApiServer, browser: Browser) -> None:
    with browser.new_context(base_url=f"http://localhost:{api.port}", java_script_enabled=False) as context:
        page = context.new_page()
        page.goto("/signin?to=/healthz")
        page.get_by_label("API key").fill("omni_" + "x" * 43)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("API key")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/healthz")
        [cookie] = context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], key in cookie["value"]) == (True, "Strict", False)


def test_a_key_of_a_tenant_shows_its_jobs_and_no_workers(settings: Settings, api: ApiServer, visitor: Visitor) -> None:
    database = Database(settings.resolved_database_url)
    Tenants(database).create("globex")
    reader, other = ApiKeys(database).create("globex", ["read"]).key, ApiKeys(database).create("globex", ["submit"]).key
    operator = ApiKeys(database).create("globex", ["admin"]).key
    database.close()
    hands, page = Hands(api), visitor.page
    job = hands.submitted(headers={"Authorization": f"Bearer {other}"})
    hands.claimed(job)
    for key, sees in ((reader, "Only a key with the scope admin sees the workers."), (operator, "first@host-a")):
        page.goto("/")
        page.wait_for_url("**/signin")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name=job)).to_be_visible()
        expect(page.get_by_text(sees)).to_be_visible()
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/signin")
    page.goto(f"/jobs/{job}")
    page.wait_for_url(re.compile(rf"/signin\?to=.*{job}"))


def test_the_page_of_an_open_job_leads_to_the_sign_in_once_the_session_has_ended(
    key: str, settings: Settings, api: ApiServer, visitor: Visitor
) -> None:
    database = Database(settings.resolved_database_url)
    submitter = ApiKeys(database).create("acme", ["submit"]).key
    database.close()
    job = Hands(api).submitted(headers={"Authorization": f"Bearer {submitter}"})
    page = visitor.page

    def end_session(route: Route) -> None:
        visitor.context.clear_cookies()
        route.continue_(headers={"Accept": "text/event-stream"})

    visitor.context.route("**/events*", end_session)
    page.goto(f"/signin?to=/jobs/{job}")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile("/signin$"))
