"""``PathPrefix``: serves the API below a path, as a proxy in front shows it, and ``below``, which makes URLs of it."""

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from omni_jobs.views import JobView


class PathPrefix:
    """Middleware that serves the API below a prefix, such as ``/jobs-api``, whether the proxy strips it or not.

    A browser that leaves out the last slash of the dashboard's address is sent to the page.
    """

    def __init__(self, app: ASGIApp, *, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path == self._prefix and scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            # The links of the dashboard count from its directory. No host is named, because a request may name any.
            await Response(status_code=307, headers={"Location": f"{self._prefix}/"})(scope, receive, send)
            return
        if not (path + "/").startswith(self._prefix + "/"):
            path = self._prefix + path  # the routes take the prefix off again
        await self._app({**scope, "root_path": self._prefix, "path": path}, receive, send)


def below(prefix: str, job: JobView) -> JobView:
    """Return a job whose artifacts have URLs below a prefix; "" for none."""
    if not prefix or not job.artifacts:
        return job
    artifacts = [artifact.model_copy(update={"url": prefix + artifact.url}) for artifact in job.artifacts]
    return job.model_copy(update={"artifacts": artifacts})
