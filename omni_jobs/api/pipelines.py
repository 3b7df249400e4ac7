"""The route of pipelines: lists those that this server serves."""

from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter

from omni_jobs.api.needs import Reader
from omni_jobs.api.services import Services, ServicesDep
from omni_jobs.database.clock import as_datetime
from omni_jobs.http.error_answers import errors
from omni_jobs.jobs import paused_since
from omni_jobs.pipelines.outputs import output
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.views import BoundsView, FormatView, OutputView, PipelineList, PipelineView, StageView

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"])


@router.get("", response_model=PipelineList, responses=errors(503))
def list_pipelines(caller: Reader, services: ServicesDep) -> PipelineList:
    """List the pipelines that this server serves, each with its inputs, outputs, stages and parameters."""
    services.versions.learn()
    paused = services.jobs.paused_stages()
    return PipelineList(pipelines=[_view(services, pipeline, paused) for pipeline in services.pipelines.values()])


def _view(services: Services, pipeline: Pipeline, paused: Mapping[tuple[str, str], float]) -> PipelineView:
    whole = services.pipelines.broken(pipeline.reference) is None  # a broken plug-in's parameters cannot be known
    since = partial(paused_since, paused, pipeline.name, pipeline.version)
    return PipelineView(
        name=pipeline.name,
        label=services.pipelines.label(pipeline),
        version=pipeline.version,
        digest=pipeline.digest if whole else None,
        description=pipeline.description,
        accepts=list(pipeline.accepts),
        modalities=list(pipeline.outputs),
        outputs=[_output_view(modality, made.stage) for modality, made in pipeline.outputs.items()] if whole else [],
        voices=list(pipeline.voices),
        stages=[
            StageView(
                name=stage.name,
                kind=stage.kind,
                inputs=dict(stage.inputs),
                produces=stage.produces,
                parameters=stage.parameters_with({}).model_dump(mode="json") if whole else {},
                bounds=_bounds(stage) if whole else {},
                resumable=whole and stage.is_resumable,
                paused_at=None if (at := since(stage.name)) is None else as_datetime(at),
            )
            for stage in pipeline.stages.values()
        ],
        trouble=services.unavailable_reason(pipeline),
    )


def _bounds(stage: StageConfig) -> dict[str, BoundsView]:
    """Return the bounds of the stage's parameters, and of what else it has a limit for."""
    bounded = {name: each.to_dict() for name, each in stage.bounds.items()}
    shown = {*stage.parameters_type.model_fields, *stage.parameters_type.quantities, *stage.limits}
    return {name: BoundsView(**each) for name, each in bounded.items() if each and name in shown}


def _output_view(modality: str, stage: str) -> OutputView:
    made = output(modality)
    return OutputView(
        modality=modality,
        stage=stage,
        flow=made.flow,
        formats=[
            FormatView(name=each.name, media_type=each.media_type, artifact=made.artifact_name(each))
            for each in made.formats
        ],
    )
