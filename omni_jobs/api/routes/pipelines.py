"""Routes of pipelines: what this server can be asked for."""

from __future__ import annotations

from fastapi import APIRouter

from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.errors import OmniJobsError
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.views import ErrorView, PipelineList, PipelineView, StageView

__all__ = ["router", "trouble"]

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"])


@router.get("", response_model=PipelineList)
def list_pipelines(services: ServicesDep) -> PipelineList:
    """What this server can be asked for."""
    return PipelineList(pipelines=[_view(services, pipeline) for pipeline in services.pipelines.values()])


def trouble(services: Services, pipeline: Pipeline) -> ErrorView | None:
    """Why no job can be admitted, or None."""
    try:
        services.renderers.of(pipeline)
    except OmniJobsError as error:
        return ErrorView(**error.to_dict())
    return None


def _view(services: Services, pipeline: Pipeline) -> PipelineView:
    return PipelineView(
        name=pipeline.name,
        version=pipeline.version,
        description=pipeline.description,
        accepts=list(pipeline.accepts),
        modalities=list(pipeline.outputs),
        voices=list(pipeline.voices),
        stages=[
            StageView(
                name=stage.name,
                kind=stage.kind,
                inputs=dict(stage.inputs),
                parameters=stage.parameters_with({}).model_dump(mode="json"),
            )
            for stage in pipeline.stages.values()
        ],
        trouble=trouble(services, pipeline),
    )
