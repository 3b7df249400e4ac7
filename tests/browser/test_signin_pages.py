"""The sign-in in a browser, with JavaScript and without."""

import pytest
from playwright.sync_api import Browser, expect

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
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
