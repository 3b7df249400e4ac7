"""The charts of the overview in a browser: drawn of the samples, told by the pointer, and for operators alone."""

import pytest
from playwright.sync_api import expect
from sqlalchemy import text

from omni_jobs.metrics.stage_stats import Histogram, StageStats, WorkerStats
from tests.browser.seeded_jobs import Hands, one_of_each
from tests.browser.visitor import Visitor, check_looks
from tests.integration.api_server import ApiServer


@pytest.fixture
def sampled(api: ApiServer) -> ApiServer:
    """A server whose stages were sampled twice."""
    one_of_each(api)
    jobs = api.services.jobs
    jobs.sample()
    for n, worker in enumerate(jobs.workers(), 1):
        stats = StageStats({"run": Histogram({"0.5": 40 * n}, 9.0)}, {"completed": 40 * n, "model_error": n})
        jobs.renew(worker.id, 600.0, stats=WorkerStats(stats).to_json())
    with api.services.db.begin() as tx:
        tx.execute(text("UPDATE samplings SET at = at - 10"))
        tx.execute(text("UPDATE stage_samples SET at = at - 10 WHERE step_s = 10"))
    assert jobs.sample() is not None
    return api


def test_the_overview_with_charts_looks_well(sampled: ApiServer, visitor: Visitor) -> None:
    check_looks(visitor, "/")
    check_looks(visitor, "/?over=day")


def test_charts_are_drawn_and_told_by_the_pointer(sampled: ApiServer, visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/")
    expect(page.locator("#charts canvas")).to_have_count(8)
    expect(page.get_by_role("cell", name="echo.second", exact=True)).to_be_visible()
    page.locator("#plot-ended .u-over").hover()
    expect(page.locator("#chart-ended output")).to_contain_text("UTC:")
    page.get_by_role("link", name="day", exact=True).click()
    page.wait_for_url("**/?over=day")
    expect(page.get_by_role("heading", name="The last day")).to_be_visible()
    expect(page.locator("#charts canvas")).to_have_count(8)
    Hands(sampled).submitted()
    page.evaluate("htmx.trigger(document.getElementById('charts'), 'again')")
    expect(page.locator("#charts canvas")).to_have_count(8)
