"""While a process is away, open pages say what is lost, or that what they show is old; then go on by themselves."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from omni_jobs.api import action_performer
from omni_jobs.dashboard import needs_a_person
from omni_jobs.settings import Settings
from omni_jobs.stack.valkey import Valkey
from tests.browser.seeded_jobs import Hands
from tests.integration.api_server import ApiServer, serve
from tests.integration.echo_stack import EchoStack
from tests.services.mortal_database import MortalPostgres

OLD = "what stands here is old"
_JOBS = 80  # cancelled two by two: time enough to stop the server


def test_open_pages_outlive_the_server(settings: Settings, browser: Browser) -> None:
    with browser.new_context() as context:
        overview, job_page, jobs, workers = (context.new_page() for _ in range(4))
        with serve(settings) as api:
            job = Hands(api).submitted()
            for page, path in ((overview, ""), (job_page, f"jobs/{job}"), (jobs, "jobs"), (workers, "workers")):
                page.goto(f"http://localhost:{api.port}/{path}")
            expect(overview.get_by_role("link", name=job)).to_be_visible()
            expect(job_page.locator("header .state.queued")).to_be_visible()
            port = api.port
        for page in (overview, job_page, jobs, workers):
            expect(page.get_by_text(OLD)).to_be_visible()
        for page in (overview, job_page, jobs):
            expect(page.get_by_text(job).first).to_be_visible()
        with serve(settings, port=port) as api:
            newest = Hands(api).submitted()
            api.services.jobs.cancel(job)
            expect(job_page.locator("header .state.cancelled")).to_be_visible()
            for page in (overview, jobs):
                expect(page.get_by_role("link", name=newest)).to_be_visible()
            for page in (overview, job_page, jobs, workers):
                expect(page.get_by_text(OLD)).to_be_hidden()


def test_an_action_on_many_jobs_and_its_page_outlive_the_server(
    settings: Settings, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_performer, "GROUP", 2)
    with browser.new_context() as context:
        page = context.new_page()
        with serve(settings) as api:
            jobs = [Hands(api).submitted() for _ in range(_JOBS)]
            page.goto(f"http://localhost:{api.port}/jobs?pipeline=echo")
            page.locator("#of").select_option("matching")
            page.get_by_role("button", name="Cancel…").click()
            page.get_by_role("button", name=f"Cancel {_JOBS} jobs").click()
            expect(page.get_by_role("heading", name=re.compile(r"^\d+ jobs cancelled"))).to_be_visible()
            port = api.port
        expect(page.get_by_text(OLD)).to_be_visible()
        with serve(settings, port=port) as api:
            expect(page.get_by_role("heading", name=f"{_JOBS} jobs cancelled", exact=True)).to_be_visible()
            assert {str(api.services.jobs.get(each).status) for each in jobs} == {"cancelled"}


# The processes behind the server, each killed in turn under the same four pages.

ONE_STAGE = """
name: echo
version: "1"
stages:
  first: {kind: echo, processor: echo, produces: text, slots: 8, time_limit_s: 900, retries: {worker_lost: 3}}
outputs:
  text: {stage: first}
"""
_NO_SAMPLE_S = 13.0  # a rescuer looks every two seconds whether the sample of the last ten is taken


class _Stack:
    """Processes that a test kills, and an API server in a thread."""

    def __init__(self, directory: Path, database: MortalPostgres) -> None:
        self.database = database
        self._valkey = Valkey(directory)
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self._directory = directory
        self.start_broker()
        self.echo = EchoStack(directory, database.new_database(), self._valkey.url, config=ONE_STAGE)

    def start_broker(self) -> None:
        self._start("broker", *self._valkey.command())
        while not self._valkey.answers():
            assert self._parts["broker"].poll() is None

    def start_rescuer(self) -> None:
        self._start("rescuer", sys.executable, "-m", "omni_jobs.cli", "rescuer")

    def _start(self, part: str, *command: str) -> None:
        variables = self.echo.command()[1] if part == "rescuer" else None
        with open(self._directory / f"{part}.log", "ab") as log:
            self._parts[part] = subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def kill(self, part: str) -> None:
        """SIGKILL."""
        self._parts[part].kill()
        self._parts[part].wait()

    def await_renewal(self) -> None:
        """Wait until the worker has renewed its lease once more."""
        [before] = self.echo.jobs.workers()
        self.echo.until(lambda: self.echo.jobs.workers()[0].renewed_at > before.renewed_at or None, 30.0)

    def close(self) -> None:
        self.echo.close()
        for part in self._parts:
            self.kill(part)


@pytest.fixture
def stack(tmp_path: Path, mortal_postgres: MortalPostgres) -> Iterator[_Stack]:
    with closing(_Stack(tmp_path, mortal_postgres)) as stack:
        stack.start_rescuer()
        stack.echo.start("first")
        yield stack


class _Pages:
    """The four pages of one server, with a job of their own that runs."""

    def __init__(self, pages: list[Page], job: str, port: int) -> None:
        self.overview, self.job, self.jobs, self.workers = self.all = pages
        for page, path in zip(pages, ("", f"jobs/{job}", "jobs", "workers"), strict=True):
            page.goto(f"http://localhost:{port}/{path}")
        self._job_id = job

    def show_it_running(self, attempt: int = 1) -> None:
        expect(self.overview.get_by_text("1 of 8 slots", exact=True)).to_be_visible()
        expect(self.jobs.locator(f"#row-{self._job_id} .state.in_progress")).to_be_visible()
        expect(self.job.locator("header .state.in_progress")).to_be_visible()
        runs = re.compile(f"attempt {attempt} runs")
        expect(self.job.get_by_role("img", name=runs)).to_be_visible()
        expect(self.workers.get_by_text("1 of 8", exact=True)).to_be_visible()

    def show_completed(self, job: str) -> None:
        for page in (self.overview, self.jobs):
            expect(page.locator(f"#row-{job} .state.completed")).to_be_visible()

    def are_not_old(self) -> None:
        for page in self.all:
            expect(page.get_by_text(OLD)).to_be_hidden()


@pytest.mark.long  # nearly all of it waits
def test_open_pages_tell_of_each_process_that_is_killed_and_go_on_by_themselves(
    stack: _Stack, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs_a_person, "_NO_SAMPLE_S", _NO_SAMPLE_S)
    with serve(stack.echo.settings) as api, browser.new_context() as context:
        job = Hands(api).submitted("Hello", stages={"first": {"delay_s": 600}})
        pages = _Pages([context.new_page() for _ in range(4)], job, api.port)
        pages.show_it_running()
        _the_worker(stack, pages)
        _the_rescuer(stack, pages)
        _the_broker(stack, pages, api)
        _the_database(stack, pages, api)


def _the_worker(stack: _Stack, pages: _Pages) -> None:
    stack.echo.workers[-1].process.kill()
    expect(pages.overview.get_by_text("1 stage run queued, and no worker")).to_be_visible()
    expect(pages.workers.get_by_text("No worker has a live lease")).to_be_visible()
    expect(pages.job.get_by_text("Waits at first: no worker")).to_be_visible()
    expect(pages.job.get_by_text("worker_lost").first).to_be_visible()
    pages.are_not_old()
    stack.echo.start("first")
    pages.show_it_running(attempt=2)


def _the_rescuer(stack: _Stack, pages: _Pages) -> None:
    lost = pages.overview.get_by_text("nobody has sampled the stages")
    expect(lost).to_be_hidden()
    stack.kill("rescuer")
    expect(lost).to_be_visible()
    pages.are_not_old()
    stack.start_rescuer()
    expect(lost).to_be_hidden()


def _the_broker(stack: _Stack, pages: _Pages, api: ApiServer) -> None:
    lost = pages.overview.get_by_text("the broker takes no doorbells")
    expect(lost).to_be_hidden()
    stack.kill("broker")
    expect(lost).to_be_visible()
    pages.show_completed(Hands(api).submitted())  # the worker finds it by a poll
    pages.are_not_old()
    stack.start_broker()
    expect(lost).to_be_hidden()


def _the_database(stack: _Stack, pages: _Pages, api: ApiServer) -> None:
    stage = api.services.pipelines["echo"].stage_id("first")
    api.services.jobs.pause(stage)
    for _ in range(2):  # the worker learns of it with a renewal, and has heeded it by the next
        stack.await_renewal()
    job = Hands(api).submitted()
    pages.job.goto(f"http://localhost:{api.port}/jobs/{job}")
    expect(pages.job.get_by_text("Waits at first")).to_be_visible()  # so that no event tells it of the outage
    stack.database.kill()
    for page in pages.all:
        expect(page.get_by_text(OLD)).to_be_visible()
    stack.database.start()
    pages.are_not_old()
    api.services.jobs.resume(stage)
    pages.show_completed(job)
    expect(pages.job.locator("header .state.completed")).to_be_visible()
