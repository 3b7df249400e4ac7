"""The list of jobs in a browser, on both databases: filters, pages, selection, keys, and actions after a preview."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from omni_jobs.api import action_performer
from omni_jobs.dashboard import jobs as jobs_page
from omni_jobs.settings import Settings
from tests.browser.seeded_jobs import Hands, one_of_each
from tests.browser.visitor import Visitor, check_looks
from tests.integration.api_server import ApiServer, server_settings


@pytest.fixture
def settings(database_url: str, valkey_server: str, tmp_path: Path) -> Settings:
    """Of a server with an empty database, once on SQLite and once on PostgreSQL."""
    return server_settings(tmp_path, valkey_server, database_url=database_url)


def test_the_list_looks_well(api: ApiServer, visitor: Visitor) -> None:
    one_of_each(api)
    check_looks(visitor, "/jobs?pipeline=echo")


def test_filters_stand_in_the_address_bar_and_come_back_with_it(api: ApiServer, visitor: Visitor) -> None:
    jobs, page = one_of_each(api), visitor.page
    page.goto("/jobs")
    page.locator("#first-filter").select_option("failed")
    page.get_by_label("Label").first.fill("project=land")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url(re.compile(r"status=failed.*metadata=project%3Dland"))
    expect(page.locator("tr[data-href]")).to_have_count(1)
    expect(page.get_by_role("link", name=jobs["failed"])).to_be_visible()
    page.reload()
    expect(page.get_by_label("Label").first).to_have_value("project=land")
    page.goto("/jobs?status=none")
    expect(page.get_by_role("heading", name="422")).to_be_visible()


def test_the_list_is_live_and_goes_on_by_pages(
    api: ApiServer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_page, "_PAGE", 2)
    hands, page = Hands(api), visitor.page
    oldest, middle = hands.submitted(), hands.submitted()
    page.goto("/jobs")
    newest = hands.submitted()
    expect(page.get_by_role("link", name=newest)).to_be_visible()
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name=oldest)).to_be_visible()
    expect(page.get_by_role("link", name=middle)).to_have_count(0)
    page.get_by_role("link", name="Newest").click()
    expect(page.get_by_role("link", name=middle)).to_be_visible()


def test_jobs_are_selected_by_keys_and_cancelled_after_a_preview(api: ApiServer, visitor: Visitor) -> None:
    hands, page = Hands(api), visitor.page
    old, new = hands.submitted(), hands.submitted()
    page.goto("/jobs")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_label(f"select {new}")).to_be_checked()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_text("2 jobs selected")).to_be_visible()
    page.keyboard.press("k")
    page.keyboard.press("x")
    expect(page.get_by_text("1 job selected")).to_be_visible()
    hands.submitted()
    expect(page.locator("tr[data-href]")).to_have_count(3)
    expect(page.get_by_label(f"select {old}")).to_be_checked()  # a selection outlives what is drawn anew
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("heading", name="Cancel 1 job?")).to_be_visible()
    page.get_by_role("button", name="Cancel 1 job").click()
    expect(page.get_by_role("heading", name="1 job cancelled")).to_be_visible()
    assert [str(api.services.jobs.get(each).status) for each in (old, new)] == ["cancelled", "queued"]


def test_the_other_keys(api: ApiServer, visitor: Visitor) -> None:
    job, page = Hands(api).submitted(), visitor.page
    page.goto("/jobs")
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("#first-filter")).to_be_focused()
    page.locator("body").click(position={"x": 2, "y": 2})
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job}")


def test_all_that_match_are_cancelled(api: ApiServer, visitor: Visitor) -> None:
    hands, page = Hands(api), visitor.page
    jobs = [hands.submitted(metadata={"project": "sea"}) for _ in range(3)]
    page.goto("/jobs?metadata=project%3Dsea")
    page.locator("#of").select_option("matching")
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel 3 jobs").click()
    expect(page.get_by_role("heading", name="3 jobs cancelled")).to_be_visible()
    assert {str(api.services.jobs.get(each).status) for each in jobs} == {"cancelled"}
    [action] = api.services.jobs.actions()
    for path in (f"/actions/{action.id}", "/actions"):
        check_looks(visitor, path)


def test_what_two_tabs_do_to_the_same_jobs_happens_once_and_is_told_to_both(api: ApiServer, visitor: Visitor) -> None:
    hands = Hands(api)
    ended, gone, queued = (hands.submitted(metadata={"project": "sea"}) for _ in range(3))
    tabs = (visitor.page, visitor.context.new_page())
    for tab in tabs:
        tab.goto("/jobs?metadata=project%3Dsea")
        for job in (ended, gone, queued):
            tab.get_by_label(f"select {job}").check()
        tab.get_by_role("button", name="Cancel…").click()
        expect(tab.get_by_role("heading", name="Cancel 3 jobs?")).to_be_visible()
    hands.completed(ended)
    api.services.jobs.cancel(gone)
    api.services.jobs.delete(gone)
    for tab, told in zip(tabs, ("1 job cancelled", "0 jobs cancelled"), strict=True):
        tab.get_by_role("button", name="Cancel 3 jobs").click()
        expect(tab.get_by_role("heading", name=told)).to_be_visible()
        expect(tab.get_by_text("the job is completed already")).to_be_visible()
        expect(tab.get_by_text(f"there is no job '{gone}'")).to_be_visible()
    expect(tabs[1].get_by_text("the job is cancelled already")).to_be_visible()
    acts = [(act.action, act.target) for act in api.services.jobs.acts(at_most=100)]
    assert acts.count(("cancel", queued)) == 1
    job_page, other = tabs
    alone = hands.submitted()
    for tab in tabs:
        tab.goto(f"/jobs/{alone}")
        expect(tab.get_by_role("button", name="Cancel")).to_be_visible()
    job_page.get_by_role("button", name="Cancel").click()
    expect(other.locator("header .state.cancelled")).to_be_visible()  # the other tab learns it by itself
    for tab in tabs:
        tab.get_by_role("button", name="Retry", exact=True).click()
    expect(job_page.locator("header .state.queued")).to_be_visible()
    expect(other.get_by_role("heading", name="409")).to_be_visible()
    expect(other.get_by_text(f"job {alone} is queued: only a job that has ended can be retried")).to_be_visible()
    assert api.services.jobs.get(alone).retries == 1


def test_an_action_is_stopped_on_its_page(api: ApiServer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_performer, "GROUP", 1)
    hands, page = Hands(api), visitor.page
    for _ in range(100):
        hands.submitted()
    page.goto("/jobs?pipeline=echo")
    page.locator("#of").select_option("matching")
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel 100 jobs").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("It was stopped by anyone")).to_be_visible()
    [stopped] = api.services.jobs.actions()
    assert (stopped.state, stopped.changed < 100) == ("stopped", True)
