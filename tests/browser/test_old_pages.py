"""While the server is away its pages say that what stands there is old. Once it is back they go on by themselves."""

import re

import pytest
from playwright.sync_api import Browser, Route, expect

from omni_jobs.api import many_jobs
from omni_jobs.settings import Settings
from tests.browser.seeded_jobs import Hands
from tests.integration.api_server import serve

LATE_MS = 20_000
OLD = "what stands here is old"
_JOBS = 80  # cancelled two by two, which takes 12 s: time enough to stop the server


def test_open_pages_outlive_the_server(settings: Settings, browser: Browser) -> None:
    with browser.new_context() as context:
        overview, job_page = context.new_page(), context.new_page()
        with serve(settings) as api:
            job = Hands(api).submitted()
            overview.goto(f"http://localhost:{api.port}/")
            job_page.goto(f"http://localhost:{api.port}/jobs/{job}")
            expect(overview.get_by_role("link", name=job)).to_be_visible()
            expect(job_page.locator("header .state.queued")).to_be_visible()
            port = api.port
        for page in (overview, job_page):
            expect(page.get_by_text(OLD)).to_be_visible(timeout=LATE_MS)
            expect(page.get_by_text(job).first).to_be_visible()
        with serve(settings, port=port) as api:
            newest = Hands(api).submitted()
            api.services.jobs.cancel(job)
            expect(overview.get_by_role("link", name=newest)).to_be_visible(timeout=LATE_MS)
            expect(job_page.locator("header .state.cancelled")).to_be_visible(timeout=LATE_MS)
            for page in (overview, job_page):
                expect(page.get_by_text(OLD)).to_be_hidden(timeout=LATE_MS)


def test_an_action_on_many_jobs_outlives_the_server(
    settings: Settings, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_jobs, "_GROUP", 2)
    monkeypatch.setattr(many_jobs, "_LONGEST_S", 0.0)
    with browser.new_context() as context:
        page = context.new_page()
        with serve(settings) as api:
            jobs = [Hands(api).submitted() for _ in range(_JOBS)]
            page.goto(f"http://localhost:{api.port}/jobs?pipeline=echo")
            page.locator("#of").select_option("matching")
            page.get_by_role("button", name="Cancel…").click()
            page.get_by_role("button", name=f"Cancel {_JOBS} jobs").click()
            expect(page.get_by_role("heading", name=re.compile(r"^\d+ jobs cancelled so far$"))).to_be_visible()
            port = api.port
        expect(page.get_by_text(OLD)).to_be_visible(timeout=LATE_MS)
        with serve(settings, port=port) as api:
            expect(page.get_by_role("heading", name=f"{_JOBS} jobs cancelled", exact=True)).to_be_visible(
                timeout=LATE_MS
            )
            assert {str(api.services.jobs.get(each).status) for each in jobs} == {"cancelled"}


def test_an_action_on_many_jobs_waits_for_a_busy_server_and_for_a_key(
    settings: Settings, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_jobs, "_GROUP", 2)
    monkeypatch.setattr(many_jobs, "_LONGEST_S", 0.0)
    refusals = [429, 401]

    def answer(route: Route) -> None:
        if route.request.is_navigation_request() or not refusals:
            route.continue_()
        else:
            route.fulfill(status=refusals.pop(0), body="no")

    with browser.new_context() as context, serve(settings) as api:
        page = context.new_page()
        jobs = [Hands(api).submitted() for _ in range(6)]
        page.goto(f"http://localhost:{api.port}/jobs?pipeline=echo")
        page.route("**/jobs/actions/run", answer)
        page.locator("#of").select_option("matching")
        page.get_by_role("button", name="Cancel…").click()
        page.get_by_role("button", name="Cancel 6 jobs").click()
        for why in ("asked too often", "sign in in another tab"):
            expect(page.get_by_text(why)).to_be_visible()
        expect(page.get_by_role("heading", name="6 jobs cancelled", exact=True)).to_be_visible(timeout=LATE_MS)
        assert {str(api.services.jobs.get(each).status) for each in jobs} == {"cancelled"}
