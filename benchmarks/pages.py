"""How long a browser takes until a page is whole: with its styles, its scripts and what these draw.

    python -m benchmarks.pages --json FILE [--jobs 20000] [--runs 9] [--quick]

``benchmarks.history`` fills the database. Each page is opened in turn with all others, with what the browser keeps of
other pages, as one who goes from page to page has it. The time is that of the browser's own entry of the navigation,
from the click to the end of the load, or to the last thing that it painted, if that came later.
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Page
from rich.progress import track

from benchmarks.figures import Figure, figure, report
from benchmarks.history import fill
from omni_jobs.dashboard.navigation import NAVIGATION
from omni_jobs.database.database import Database
from omni_jobs.jobs import JobFilter, Jobs
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from tests.services.chromium import running_chromium

_MOST_MS = 1000
_WHOLE = """() => new Promise((resolve) => {
    const [page] = performance.getEntriesByType("navigation");
    let painted = 0;
    new PerformanceObserver((list) => { for (const each of list.getEntries()) painted = each.startTime; })
        .observe({ type: "largest-contentful-paint", buffered: true });
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(Math.max(page.loadEventEnd, painted))));
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--jobs", type=int, default=20_000, help="in the database (default 20,000)")
    parser.add_argument("--runs", type=int, default=9, help="times each page is opened (default 9)")
    parser.add_argument("--quick", action="store_true", help="few and short: whether it works")
    asked = parser.parse_args()
    if asked.quick:
        asked.jobs, asked.runs = 2000, 1
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory:
        settings = Settings(data_dir=Path(directory) / "data", max_waits=10**4)
        settings = settings.model_copy(update={"max_waits_per_tenant": 10**4})
        with closing(Database(settings.resolved_database_url)) as db:
            db.migrate()
            fill(db, settings, asked.jobs)
            paths = _paths(Jobs(db))
        with EmbeddedStack(settings, pipelines=[]) as stack, running_chromium() as browser:
            figures = list(_pages(browser.new_page(base_url=stack.url), paths, asked.runs))
    report(figures, asked.json)


def _paths(jobs: Jobs) -> list[str]:
    completed, waiting = (
        jobs.list(JobFilter(states=frozenset([state])), limit=1).jobs[0].id
        for state in (JobState.COMPLETED, JobState.QUEUED)
    )
    tenant = jobs.get(completed).tenant
    return [*(entry.path for entry in NAVIGATION), "/?over=month", f"/jobs?tenant={tenant}", f"/jobs/{completed}",
            f"/jobs/{waiting}", f"/tenants/{tenant}", "/jobs/x"]  # fmt: skip


def _pages(page: Page, paths: Sequence[str], runs: int) -> Iterator[Figure]:
    """Return how long each page took, by its path; that of jobs without their ids."""
    took: dict[str, list[float]] = defaultdict(list)
    for _ in track(range(runs), description=f"{len(paths)} pages"):
        for path in paths:
            page.goto(path)
            name = "/jobs/{id}" if path.startswith("/jobs/job-") else path
            took[name].append(page.evaluate(_WHOLE))
    for name, each in took.items():
        yield figure(f"{name}, whole in the browser", "ms", each, at_most=_MOST_MS)


if __name__ == "__main__":
    main()
