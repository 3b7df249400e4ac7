"""The payloads of a job's page: what each stage has handed on, with dtypes and shapes from the head of its file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Response

from omni_jobs.dashboard.page_route import PageRoute
from omni_jobs.dashboard.visit import Looks
from omni_jobs.errors import OmniJobsError
from omni_jobs.http.process import short_switch_interval
from omni_jobs.http.request_parameters import JobId
from omni_jobs.jobs import KeptPayload
from omni_jobs.storage import ObjectStore

if TYPE_CHECKING:
    from omni_jobs.payloads import PayloadHead

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MOST_TENSORS: Final = 64  # of a payload that are shown


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """A payload as the page shows it. ``head`` is None where it is gone, or where ``trouble`` says why none is read."""

    kept: KeptPayload
    head: "PayloadHead | None"
    trouble: str | None


@router.get("/fragments/jobs/{job_id}/payloads")
async def show_payloads(visit: Looks, job_id: JobId) -> Response:
    """Return the payloads of a job. Of each at most its header is read, 1 MiB."""

    def read() -> Mapping[str, Any]:
        kept = visit.services.jobs.payloads(job_id, visit.caller.sees)
        with short_switch_interval():
            return {"payloads": _shown(visit.services.store, kept), "most_tensors": _MOST_TENSORS}

    return visit.answer(await visit.fragment("payloads", read, job_id))


def _shown(store: ObjectStore, payloads: Sequence[KeptPayload]) -> list[ShownPayload]:
    shown = []
    for kept in payloads:
        head, trouble = None, None
        if not kept.is_gone:
            try:
                head = _head(store, kept)
            except OmniJobsError as error:  # of the file, or of the store
                trouble = error.message
        shown.append(ShownPayload(kept, head, trouble))
    return shown


def _head(store: ObjectStore, kept: KeptPayload) -> "PayloadHead | None":
    """Return the head of a payload. Raises PayloadError, and what the store raises."""
    from omni_jobs.payloads import read_head  # loads numpy, which a server need not

    ref, inline = kept.ref, kept.inline
    if ref is not None:
        return read_head(lambda start, stop: b"".join(store.open_range(ref, start, stop)), ref.size, key=ref.key)
    return None if inline is None else read_head(lambda start, stop: inline[start:stop], len(inline))
