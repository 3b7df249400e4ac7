"""Pull the plug in a browser, on a whole embedded stack: what is killed under a stream of jobs, and their tally."""

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, expect

from omni_jobs.database.database import Database
from omni_jobs.jobs import JobFilter, Jobs
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from tests.browser.visitor import Visitor, check_looks, visiting

pytestmark = pytest.mark.timeout(600)

START_S = 240.0  # two cores may be busy with other tests
BACK_MS = 90_000  # a process may take as long to start there
PROCESSES = ("worker echo.first", "the broker", "the API", "worker echo.second")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("plug") / "data", load_limit_s=START_S)
    with EmbeddedStack(settings, pipelines=["echo"], temporary=True) as stack:
        yield stack


@pytest.fixture
def visitor(browser: Browser, stack: EmbeddedStack) -> Iterator[Visitor]:
    with visiting(browser, int(stack.url.rpartition(":")[2])) as visitor:
        yield visitor


def number(visitor: Visitor, name: str) -> int:
    return int(visitor.page.locator(f"#{name}").inner_text().replace(",", ""))


def pull(visitor: Visitor, process: str) -> None:
    """Kill a process under running jobs, and wait until a job that was accepted after it has completed."""
    page = visitor.page
    button = page.get_by_role("button", name=f"Kill {process}")
    expect(button).to_be_enabled(timeout=BACK_MS)
    rows = page.locator(".kills tbody tr")
    before = rows.first.get_attribute("id") if rows.count() else ""
    button.click()
    newest = page.locator(f".kills tbody tr:first-child:not([id='{before}'])")
    expect(newest).to_contain_text(process, timeout=BACK_MS)
    expect(newest.locator(".went-on")).to_have_text(re.compile(" s$"), timeout=BACK_MS)
    assert (number(visitor, "lost"), number(visitor, "doubled")) == (0, 0)


def stop_and_check(visitor: Visitor) -> None:
    """Stop the stream: all that the browser was told of is accepted and ends, and nothing is lost or doubled."""
    page = visitor.page
    said = page.locator("#said")
    stop = page.get_by_role("button", name="Stop the stream")
    if stop.is_visible():
        stop.click()
    expect(said).to_contain_text("has ended", timeout=BACK_MS)
    [told] = re.findall(r"(\d+) accepted", said.inner_text())
    expect(page.locator("#ended")).to_have_text(told, timeout=BACK_MS)
    assert number(visitor, "accepted") == number(visitor, "ended") == int(told) > 0
    assert [number(visitor, name) for name in ("going", "lost", "doubled")] == [0, 0, 0]
    for row in page.locator(".kills tbody tr").all():
        assert row.locator(".under").inner_text() == row.locator(".ended").inner_text()


def test_the_page_looks_well(visitor: Visitor) -> None:
    check_looks(visitor, "/plug")


def test_each_kind_of_process_is_killed_and_nothing_is_lost(visitor: Visitor, stack: EmbeddedStack) -> None:
    visitor.page.goto("/plug")
    restarts = {child.name: child.restarts for child in stack.children()}
    for process in PROCESSES[:3]:
        pull(visitor, process)
    stop_and_check(visitor)
    again = {child.name: child.restarts - restarts[child.name] for child in stack.children()}
    assert again == {"valkey": 1, "api": 1, "rescuer": 0, "worker echo.first": 1, "worker echo.second": 0}


def test_a_process_that_is_down_has_no_plug(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/plug")
    button = page.get_by_role("button", name="Kill worker echo.second")
    expect(button).to_be_enabled(timeout=BACK_MS)
    pulls = [visitor.context.request.post(
        "/plug/kills", multipart={"process": "worker echo.second"}, headers={"Sec-Fetch-Site": "same-origin"},
        max_redirects=0,
    ) for _ in range(2)]  # fmt: skip
    assert [answer.status for answer in pulls] == [303, 409]
    assert "can be pulled once it is ready" in pulls[1].text()
    expect(button).to_be_disabled()


@pytest.mark.long
def test_the_plug_is_pulled_twenty_times(visitor: Visitor, stack: EmbeddedStack) -> None:
    visitor.page.goto("/plug")
    for times in range(20):
        pull(visitor, PROCESSES[times % len(PROCESSES)])
    stop_and_check(visitor)
    with closing(Database(stack.settings.resolved_database_url)) as database:
        jobs = Jobs(database)
        cursor, streams = None, set()
        while True:
            page = jobs.list(JobFilter(metadata=(("made_by", "plug"),)), 100, cursor, brief=True)
            streams |= {job.metadata["stream"] for job in page.jobs}
            cursor = page.next_cursor
            if cursor is None:
                break
        tallies = [jobs.tally("stream", stream) for stream in streams]
        killed = [act for act in jobs.acts(at_most=1000) if act.action == "kill"]
    assert len(killed) >= 20
    assert {job.state for tally in tallies for job in tally.jobs} == {JobState.COMPLETED}
    assert [(tally.accepted - tally.ended, tally.lost, tally.doubled) for tally in tallies] == [(0, 0, 0)] * len(
        tallies
    )
    assert sum(tally.attempts for tally in tallies) > 0, "no kill has met a job"
