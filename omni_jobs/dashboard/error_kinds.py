"""The page of errors by kind: how often each came over time, and the newest job of each."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, Response

from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.over import Over
from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.visit import Looks, Visit
from omni_jobs.http.process import short_switch_interval
from omni_jobs.jobs import ErrorKind

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MOST: Final = 50
_BARS: Final = 48
BAR_HEIGHT: Final = 28  # pixels


@dataclass(frozen=True, slots=True)
class KindLine:
    """Errors of a kind. ``bars``: of each part of the time (x, height) of a bar, in pixels, and the errors in it."""

    kind: ErrorKind
    first_at: datetime
    last_at: datetime
    bars: Sequence[tuple[int, int, int]]


@router.get("/errors")
async def show_errors(visit: Looks, over: Over = Over.DAY) -> Response:
    """Show the kinds of errors that attempts ended with, the most frequent first."""
    return await visit.page("errors", "Errors", content=await _content(visit, over), over=over, overs=list(Over))


@router.get("/fragments/errors")
async def errors_content(visit: Looks, over: Over = Over.DAY) -> Response:
    """Return what of the page changes."""
    return visit.answer(await _content(visit, over))


async def _content(visit: Visit, over: Over) -> Fragment:
    return await visit.fragment("errors", lambda: _read(visit, over), over)


def _read(visit: Visit, over: Over) -> Mapping[str, Any]:
    jobs, tenant = visit.services.jobs, visit.caller.sees
    whole_s = over.seconds
    step_s = whole_s / _BARS
    until = math.ceil(time.time() / step_s) * step_s  # so that bars stay as they are while time goes on
    since = until - whole_s
    with short_switch_interval():
        kinds = jobs.error_kinds(since, until, tenant=tenant, at_most=_MOST + 1)
        shown = kinds[:_MOST]
        fingerprints = [kind.fingerprint for kind in shown]
        counts = jobs.error_counts(since, until, step_s, fingerprints=fingerprints, tenant=tenant)
    lines = [KindLine(kind, _at(kind.first_at), _at(kind.last_at), bars_of(counts[kind.fingerprint])) for kind in shown]
    return {
        "now": datetime.now(UTC),
        "lines": lines,
        "has_more": len(kinds) > _MOST,
        "most": _MOST,
        "over": over,
        "width": _BARS * 4,
        "height": BAR_HEIGHT,
    }


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def bars_of(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the bars of these counts, in pixels: (x, height, count) of each that is not 0; the highest is full."""
    most = max(counts, default=0)
    return [
        (4 * number, max(2, round(BAR_HEIGHT * count / most)), count) for number, count in enumerate(counts) if count
    ]
