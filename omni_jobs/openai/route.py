"""``OpenAIRoute``: a route whose errors are as OpenAI's clients expect them."""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.background import BackgroundTask

from omni_jobs.errors import OmniJobsError
from omni_jobs.http.error_answers import answer_to, invalid_parameter
from omni_jobs.openai.job_errors import JobFailure
from omni_jobs.openai.named_field import with_field_named

_OURS, _THEIRS = HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.BAD_REQUEST


class OpenAIRoute(APIRoute):
    """A route that answers 400 in place of 422, because what is written for OpenAI catches ``BadRequestError``.

    The messages of its errors name their fields. It answers a JobFailure as the job's error, with the job's path in
    ``Location``.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that FastAPI makes, with its refusals answered."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return _noted(request, await handle(request))
            except JobFailure as failure:
                status = _THEIRS if failure.status == _OURS else failure.status
                failed = answer_to(with_field_named(failure.error), status, job_id=failure.job_id)
                failed.headers["Location"] = f"{request.scope.get('root_path', '')}/v1/jobs/{failure.job_id}"
                return _noted(request, failed)
            except RequestValidationError as error:
                return answer_to(with_field_named(invalid_parameter(error)), _THEIRS)
            except OmniJobsError as error:
                named = with_field_named(error)
                if error.http_status != _OURS:
                    raise named from error
                return answer_to(named, _THEIRS)

        return answer


def _noted(request: Request, answer: Response) -> Response:
    """Return the answer, behind which ``request.state.when_answered`` is called if a route has set it."""
    when_answered = getattr(request.state, "when_answered", None)
    if when_answered is not None:
        answer.background = BackgroundTask(when_answered)
    return answer
