"""Routes of models, as OpenAI's clients ask for them: the pipelines that this server serves."""

from fastapi import APIRouter

from omni_jobs.api.needs import Reader
from omni_jobs.api.services import ServicesDep
from omni_jobs.errors import NotFound
from omni_jobs.http.error_answers import errors
from omni_jobs.openai.models import Model, ModelList, model_of
from omni_jobs.openai.route import OpenAIRoute

router = APIRouter(prefix="/v1/models", tags=["openai"], route_class=OpenAIRoute)


@router.get("", response_model=ModelList, responses=errors(400))
async def list_models(caller: Reader, services: ServicesDep) -> ModelList:
    """List the pipelines that this server serves, as models of OpenAI's API. `GET /v1/pipelines` says more of each."""
    return ModelList(data=[model_of(label) for label in services.pipelines])


@router.get("/{model}", response_model=Model, responses=errors(400, 404))
async def get_model(caller: Reader, services: ServicesDep, model: str) -> Model:
    """Get one of the pipelines that this server serves, as a model of OpenAI's API."""
    pipeline = services.pipelines.find(model)
    if pipeline is None:
        raise NotFound(f"there is no model {model!r:.120}; GET /v1/models lists those that are", field="model")
    return model_of(services.pipelines.label(pipeline))
