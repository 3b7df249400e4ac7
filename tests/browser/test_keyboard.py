"""The keyboard alone: Tab reaches all that can be pressed on every page, one sees where one is, and keys press it."""

import re

import pytest
from playwright.sync_api import Page, expect

from omni_jobs.dashboard.navigation import NAVIGATION
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.browser.seeded_jobs import Hands, one_of_each
from tests.browser.visitor import Visitor
from tests.integration.api_server import ApiServer

# A radio or a medium's own buttons are reached within their element. What htmx draws anew while one walks is the same.
NAMED = """
    window.named = (each) => each.id || [each.tagName, each.name, each.getAttribute("href"),
        each.getAttribute("aria-label"), each.value, each.textContent.trim().slice(0, 40)].join(" ");
    window.pressable = () => [...document.querySelectorAll(
        "a[href], button, input:not([type=hidden]), select, textarea, summary, audio, video, [tabindex='0']")]
        .filter((each) => !each.matches(":disabled") && each.checkVisibility({ visibilityProperty: true }));
"""
LISTEN = """() => {
    const look = (each) => [each, ...each.querySelectorAll("rect")].map((part) => {
        const { outlineStyle, outlineWidth, outlineColor, boxShadow, stroke, strokeWidth } = getComputedStyle(part);
        return [outlineStyle, outlineWidth, outlineColor, boxShadow, stroke, strokeWidth].join();
    }).join(";");
    window.before = new Map(pressable().map((each) => [named(each), look(each)]));
    window.reached = {};
    document.addEventListener("focusin", (event) => {
        const name = named(event.target);
        reached[name] = look(event.target) !== before.get(name);
    });
    document.body.focus();
    return before.size;
}"""


def check_walk(page: Page, path: str) -> None:
    """Walk the page by Tab: all that can be pressed is reached, and looks otherwise while it has the focus."""
    page.goto(path)
    page.evaluate(NAMED)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    for _ in range(page.evaluate(LISTEN) + 20):
        page.keyboard.press("Tab")
    missed = page.evaluate("pressable().map(named).filter((name) => before.has(name) && !(name in reached))")
    assert missed == [], path
    unseen = page.evaluate("Object.entries(reached).filter(([, seen]) => !seen).map(([name]) => name)")
    assert unseen == [], path


@pytest.fixture
def page(api: ApiServer, visitor: Visitor) -> Page:
    return visitor.page


def test_tab_reaches_all_that_can_be_pressed_and_shows_where_it_is(api: ApiServer, page: Page) -> None:
    jobs = one_of_each(api)
    Tenants(api.services.db).create("acme")
    key = ApiKeys(api.services.db).create("acme", ["read"], name="backend")
    others = (f"/jobs/{jobs['media']}", f"/jobs/{jobs['queued']}", "/tenants/acme", f"/keys/{key.id}/revoke")
    for path in (*(entry.path for entry in NAVIGATION), "/jobs?status=failed", *others, "/jobs/x"):
        check_walk(page, path)


def test_a_job_is_tried_cancelled_and_retried_by_keys_alone(api: ApiServer, page: Page) -> None:
    hands = Hands(api)
    page.goto("/try?pipeline=echo")
    page.locator("#text").focus()
    page.keyboard.type("A boat")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#answer .state.queued")).to_be_visible()
    cancel = page.locator("#answer").get_by_role("button", name="Cancel")
    cancel.focus()
    page.keyboard.press("Space")
    expect(page.locator("#answer .state.cancelled")).to_be_visible()
    page.locator("#answer a", has=page.locator("code.id")).focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/jobs/job-"))
    page.locator("#retry-from").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("header .state.queued")).to_be_visible()
    page.locator("summary", has_text="Fork…").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#fork-changes")).to_be_visible()
    hands.submitted()
    page.goto("/jobs")
    for key in ("j", "x", "j", "x"):
        page.keyboard.press(key)
    expect(page.get_by_text("2 jobs selected")).to_be_visible()
    page.locator("#of").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.get_by_role("button", name="Cancel 2 jobs").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="2 jobs cancelled")).to_be_visible()
