"""The overview's charts: what they show of which time, and to whom."""

import html
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import insert

from omni_jobs.dashboard.charts import MOST_LINES
from omni_jobs.database.seen_tables import StageSampleRow
from omni_jobs.jobs import COARSE_S, FINE_S, LONG_S
from omni_jobs.metrics.stage_stats import Histogram, StageStats
from omni_jobs.settings import Settings
from tests.integration.api_server import BEHIND_A_PROXY, ApiServer, serve
from tests.integration.dashboard.visits import Bearer, with_keys


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


@pytest.fixture
def with_tenants(settings: Settings) -> Iterator[tuple[ApiServer, Mapping[str, Bearer]]]:
    with with_keys(settings) as found:
        yield found


def sampled(api: ApiServer, step_s: int, *ago_s: int, stage: str = "first", completed: int = 30) -> None:
    """Write samples that began so many seconds ago, as a sampler would have."""
    now = int(time.time())
    seconds = dict.fromkeys(("queue", "run"), Histogram({"0.5": completed}, completed / 3))
    stats = StageStats(seconds, {"completed": completed, "lost": 10})
    standing = {"queued": 4, "running": 2, "pending": 0, "workers": 1, "loading": 0, "slots": 8}
    row = {"step_s": step_s, "pipeline": "echo", "stage": stage, "span_s": step_s, "stats": stats.to_json(), **standing}
    with api.services.db.begin() as tx:
        tx.execute(insert(StageSampleRow), [row | {"at": (now - ago) // step_s * step_s} for ago in ago_s])


def values(page: str, chart: str) -> Sequence[Sequence[Any]]:
    [found] = re.findall(rf'id="chart-{chart}" data-values="([^"]*)"', page)
    lines: Sequence[Sequence[Any]] = json.loads(html.unescape(found))
    return lines


@pytest.mark.parametrize(
    ("over", "step_s", "ago_s"),
    [("hour", FINE_S, 600), ("day", COARSE_S, 7200), ("week", LONG_S, 86_400), ("month", LONG_S, 86_400)],
)
def test_charts_of_a_time_have_its_samples(api: ApiServer, over: str, step_s: int, ago_s: int) -> None:
    sampled(api, step_s, ago_s)
    page = api.http.get("/", params={"over": over}).text
    assert f'aria-current="true">{over}</a>' in page
    for chart, value in (("queued", 4), ("running", 2), ("failed", 25), ("waited-half", 0.375), ("ran-most", 0.487)):
        times, line = values(page, chart)
        assert len(times) == len(line) <= 400
        assert [each for each in line if each is not None] == [value]
    answer = api.http.get("/fragments/charts", params={"over": over})
    same = api.http.get("/fragments/charts", params={"over": over}, headers={"If-None-Match": answer.headers["etag"]})
    assert (answer.status_code, same.status_code) == (200, 304)


def test_a_month_of_many_stages_is_read(api: ApiServer) -> None:
    for number in range(20):
        sampled(api, LONG_S, *range(7200, 29 * 86_400, 7200), stage=f"s{number}")
    page = api.http.get("/", params={"over": "month"}).text
    assert len(values(page, "ended")) == 1 + MOST_LINES + 1


@pytest.mark.parametrize("query", ["over=year", "over="])
def test_charts_of_a_time_that_there_is_not_are_refused(api: ApiServer, query: str) -> None:
    for path in ("/", "/fragments/charts"):
        assert api.http.get(f"{path}?{query}").status_code == 422


def test_only_operators_see_charts(with_tenants: tuple[ApiServer, Mapping[str, Bearer]]) -> None:
    api, by = with_tenants
    sampled(api, FINE_S, 20, 600)
    assert values(api.http.get("/", headers=by["operator"]).text, "ended")
    assert "data-values" not in api.http.get("/", headers=by["reader"]).text
    assert api.http.get("/fragments/charts", headers=by["reader"]).status_code == 403


def test_a_tenant_behind_a_proxy_sees_no_charts(settings: Settings) -> None:
    with serve(settings.model_copy(update=dict(BEHIND_A_PROXY))) as api:
        sampled(api, FINE_S, 600)
        headers = {"X-Tenant": "acme"}
        assert "data-values" not in api.http.get("/", headers=headers).text
        assert api.http.get("/fragments/charts", headers=headers).status_code == 403
