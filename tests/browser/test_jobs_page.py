"""The list of jobs in a browser: filters, pages, selection, keys, and actions on many after a preview."""

import re

import pytest
from playwright.sync_api import expect

from omni_jobs.dashboard import jobs as jobs_page
from tests.browser.seeded_jobs import Hands, one_of_each
from tests.browser.visitor import Visitor, check_looks
from tests.integration.api_server import ApiServer


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
