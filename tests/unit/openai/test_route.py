"""What a client gets of a route whose job is there and whose answer is not."""

import httpx2
from fastapi import APIRouter, FastAPI

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.job_errors import made_once
from omni_jobs.openai.route import OpenAIRoute


async def test_the_error_of_a_job_has_the_status_that_its_programs_catch() -> None:
    router = APIRouter(route_class=OpenAIRoute)

    @router.get("/made")
    async def made() -> None:
        with made_once("job-1", has_key=True):
            raise InvalidRequest(field="size")

    app = FastAPI()
    app.include_router(router)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
        answer = await client.get("/made")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["job_id"]) == (400, "size", "job-1")
    assert answer.headers["location"] == "/v1/jobs/job-1"
