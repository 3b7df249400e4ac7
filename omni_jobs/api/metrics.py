"""The route ``/metrics``: what this API process counts and measures."""

from fastapi import APIRouter, Response

from omni_jobs.api.needs import Administrator
from omni_jobs.api.services import ServicesDep
from omni_jobs.http.error_answers import errors
from omni_jobs.metrics.process_metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **errors(403)})
def show_metrics(caller: Administrator, services: ServicesDep) -> Response:
    """Return this API process's metrics in Prometheus' text format. Workers and rescuers have their own.

    They are of all tenants: so this needs the scope `admin`. The setting `metrics_port` shows them without a key.
    """
    return Response(services.metrics.text(), media_type=CONTENT_TYPE)
