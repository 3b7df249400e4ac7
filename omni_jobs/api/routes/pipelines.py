"""The route of pipelines: lists those that this server serves."""

from fastapi import APIRouter

from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.views import PipelineList, PipelineView, StageView

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"])


@router.get("", response_model=PipelineList)
def list_pipelines(services: ServicesDep) -> PipelineList:
    """List the pipelines that this server serves, each with its inputs, outputs, stages and parameters."""
    return PipelineList(pipelines=[_view(services, pipeline) for pipeline in services.pipelines.values()])


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
        trouble=services.unavailable_reason(pipeline),
    )
