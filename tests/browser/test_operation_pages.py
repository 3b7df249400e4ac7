"""The pages of operation in a browser: they look well, go on by themselves, and their buttons do what they say."""

import re

from playwright.sync_api import Browser, expect

from omni_jobs.errors import WorkerLost
from omni_jobs.jobs import NewWorker
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.browser.seeded_jobs import Hands, one_of_each
from tests.browser.visitor import Visitor, check_looks
from tests.integration.api_server import ApiServer


def quarantined(api: ApiServer, message: str = "worker worker-first was lost while it ran this") -> str:
    hands = Hands(api)
    job = hands.submitted()
    while not api.services.jobs.get(job).status.is_final:
        hands.failed(job, error=WorkerLost(message))
    return job


def test_the_pages_of_operation_look_well(api: ApiServer, visitor: Visitor) -> None:
    one_of_each(api)
    quarantined(api)
    Tenants(api.services.db).create("acme", 2.0, {"stored_bytes": 10**10})
    ApiKeys(api.services.db).create("acme", ["read"], name="backend", expires_in_s=86_400)
    for path in ("/stages", "/workers", "/errors", "/quarantine", "/tenants", "/tenants/acme", "/audit"):
        check_looks(visitor, path)


def test_no_word_of_a_tables_head_is_broken(api: ApiServer, visitor: Visitor) -> None:
    one_of_each(api)
    for width in (800, 1000, 1280):
        with visitor.looks(width, 800, "light"):
            for path in ("/", "/jobs", "/stages", "/workers", "/errors"):
                visitor.page.goto(path)
                assert visitor.broken_words() == [], (path, width)


def test_a_stage_is_paused_and_the_page_of_another_learns_it(api: ApiServer, visitor: Visitor) -> None:
    Hands(api).submitted()
    other = visitor.context.new_page()
    for page in (other, visitor.page):
        page.goto("/stages")
        expect(page.locator("#stage-echo-first")).to_contain_text("no worker")
    visitor.page.get_by_role("button", name="Pause first of echo").click()
    expect(visitor.page.get_by_role("button", name="Resume first of echo")).to_be_visible()
    expect(other.get_by_role("button", name="Resume first of echo")).to_be_visible()
    other.get_by_role("button", name="Resume first of echo").click()
    expect(visitor.page.locator("#stage-echo-first")).to_contain_text("no worker")


def test_workers_come_and_go_while_one_looks(api: ApiServer, visitor: Visitor) -> None:
    echo = api.services.pipelines["echo"]
    visitor.page.goto("/workers")
    expect(visitor.page.get_by_text("No worker has a live lease.")).to_be_visible()
    worker = NewWorker("w", "first-1@host", echo.stage_id("first"), "host", 1, 5, echo.version)
    api.services.jobs.register_worker(worker, 600.0)
    expect(visitor.page.get_by_role("cell", name="0 of 5")).to_be_visible()
    visitor.page.get_by_role("button", name="Drain first-1@host").click()
    expect(visitor.page.get_by_text("drained since")).to_be_visible()
    assert api.services.jobs.renew("w", 600.0).is_paused
    visitor.page.get_by_role("button", name="Resume first-1@host").click()
    expect(visitor.page.get_by_role("button", name="Drain first-1@host")).to_be_visible()
    assert not api.services.jobs.renew("w", 600.0).is_paused
    api.services.jobs.retire_worker("w")
    expect(visitor.page.get_by_text("No worker has a live lease.")).to_be_visible()


def test_a_quarantined_job_appears_and_is_retried_after_a_preview(api: ApiServer, visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/quarantine")
    expect(page.get_by_text("No job is quarantined")).to_be_visible()
    job = quarantined(api)
    page.get_by_role("button", name=f"Retry {job}").click()
    page.get_by_role("button", name="Retry 1 job").click()
    expect(page.get_by_role("heading", name="1 job retried")).to_be_visible()


def test_errors_and_acts_appear_while_one_looks(api: ApiServer, visitor: Visitor) -> None:
    other, hands = visitor.context.new_page(), Hands(api)
    visitor.page.goto("/errors?over=hour")
    other.goto("/audit")
    expect(other.get_by_text("Nobody has done anything yet.")).to_be_visible()
    job = hands.submitted()
    hands.failed(job)
    expect(visitor.page.get_by_role("cell", name="CUDA out of memory: tried to allocate <number> GiB")).to_be_visible()
    expect(visitor.page.get_by_role("img", name="1 error over the hour")).to_be_visible()
    visitor.page.get_by_role("link", name=job).click()
    visitor.page.get_by_role("button", name="Retry", exact=True).click()
    expect(other.get_by_role("cell", name="retried")).to_be_visible()
    expect(other.get_by_role("link", name=job)).to_be_visible()


def test_a_key_is_copied_by_a_button(api: ApiServer, visitor: Visitor) -> None:
    Tenants(api.services.db).create("acme")
    page = visitor.page
    page.goto("/tenants/acme")
    page.get_by_label("Name, by which people know it").fill("backend")
    page.get_by_role("button", name="Make the key").click()
    shown = page.get_by_label("the key")
    expect(shown).to_have_text(re.compile("^omni_"))
    assert visitor.faults() == []
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == shown.inner_text()
    page.get_by_role("link", name="I have it").click()
    expect(page.get_by_role("cell", name="backend")).to_be_visible()


def test_without_javascript_one_looks_and_acts(api: ApiServer, browser: Browser) -> None:
    Tenants(api.services.db).create("acme")
    Hands(api).submitted()
    with browser.new_context(base_url=f"http://localhost:{api.port}", java_script_enabled=False) as context:
        page = context.new_page()
        page.goto("/stages")
        page.get_by_role("button", name="Pause first of echo", exact=True).click()
        expect(page.get_by_role("button", name="Resume first of echo", exact=True)).to_be_visible()
        page.goto("/tenants/acme")
        page.get_by_label("Waiting jobs of a pipeline").fill("30")
        page.get_by_role("button", name="Set", exact=True).click()
        expect(page.get_by_label("Waiting jobs of a pipeline")).to_have_value("30")
        page.get_by_role("button", name="Make the key").click()
        page.get_by_role("link", name="I have it").click()
        page.get_by_role("link", name="Revoke key-").click()
        page.get_by_role("button", name="Revoke it").click()
        expect(page.get_by_role("cell", name="revoked")).to_be_visible()
