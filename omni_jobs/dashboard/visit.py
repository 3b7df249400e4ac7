"""``Visit``: a request for a page of the dashboard, or for a fragment of one: who looks, and how it is answered."""

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import Depends, Request, Response

from omni_jobs.api.needs import Needs
from omni_jobs.api.services import Services
from omni_jobs.dashboard.fragments import Fragment, Fragments
from omni_jobs.dashboard.navigation import NAVIGATION, PLUG
from omni_jobs.dashboard.static_files import static_version
from omni_jobs.dashboard.templates import rendered
from omni_jobs.errors import ForeignOrigin
from omni_jobs.tenants.caller import Caller, Scope

# The style that wavesurfer.js puts into its shadow root for a height of 72 pixels; a browser test hears of another one.
WAVESURFER_STYLE: Final = "'sha256-XGW/cX2BkTPWNNT3NdyASrPEWZfPnKdPJaJ2aN7R+v8='"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'; media-src 'self'; "
    f"style-src 'self' {WAVESURFER_STYLE}; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of every page: nothing inline, nothing of another origin."""
# "no-referrer" would make browsers send "Origin: null" with a form.
PAGE_HEADERS: Final = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
"""The headers of every page and fragment."""


class Visit:
    """A request of a caller that looks at the dashboard, or acts in it."""

    def __init__(self, request: Request, caller: Caller) -> None:
        self.request = request
        self.caller = caller
        self.services: Services = request.app.state.services
        self._fragments: Fragments = request.app.state.fragments

    @property
    def root(self) -> str:
        """The path below which the server is shown; "" for none."""
        return self.services.settings.root_path

    async def fragment(
        self, name: str, read: Callable[[], Mapping[str, Any]], *more: Hashable, kept_s: float | None = None
    ) -> Fragment:
        """Return the fragment that the template ``fragments/NAME.html`` makes of what ``read`` returns, from a thread.

        ``more``: what else its content depends on, beside who looks. It is kept for ``kept_s`` (None: a second).
        """
        threads, sees = self.services.list_threads, self.caller.sees
        key = (name, self.caller.operates, self.caller.scopes, *more)

        def render() -> str:
            return rendered(f"fragments/{name}.html", **self._given(), **read())

        return await self._fragments.get(sees, key, render, partial(threads.run, sees), kept_s)

    async def page(self, name: str, title: str, status: int = 200, **values: Any) -> Response:
        """Answer with the page of the template ``NAME.html``. A ``Fragment`` among the values stands in it as it is."""
        html = await self.services.list_threads.run(
            self.caller.sees, lambda: rendered(f"{name}.html", **self._given(), **values, page=name, title=title)
        )
        return self.answer(Fragment.of(html), status)

    def answer(self, fragment: Fragment, status: int = 200) -> Response:
        """Answer with a fragment, or with nothing if the browser has it."""
        headers = {**PAGE_HEADERS, "ETag": fragment.etag, "Cache-Control": "private, no-cache"}
        if status == 200 and self.request.headers.get("if-none-match") == fragment.etag:
            return Response(status_code=304, headers=headers)
        return Response(fragment.html.encode("utf-8", "replace"), status, headers, media_type="text/html")

    def forget(self) -> None:
        """Let what the caller sees be rendered anew, because it has changed something."""
        self._fragments.forget(self.caller.sees)

    def moved(self, path: str) -> Response:
        """Send the browser on to a page after an action."""
        self.forget()
        return moved(self.root, path)

    def _given(self) -> dict[str, Any]:
        return frame_of(self.request, self.caller)


def frame_of(request: Request, caller: Caller | None) -> dict[str, Any]:
    """Return what every page is given: its paths, the navigation, and who looks, if that is known."""
    services: Services = request.app.state.services
    root = services.settings.root_path
    who = {} if caller is None else {"caller": caller, "may_act": caller.may(Scope.SUBMIT)}
    return {
        **who,
        "root": root,
        "static": f"{root}/static/{static_version()}",
        "navigation": NAVIGATION if request.app.state.plugs is None else (*NAVIGATION, PLUG),
        "has_keys": services.callers.auth == "keys",
    }


def moved(root: str, path: str) -> Response:
    """Send the browser on to a path of the dashboard by GET. No host is named, because a request may name any."""
    return Response(status_code=303, headers={"Location": quote(root + path, safe="/?&=%:,+-._~")})


def _visit(scope: Scope) -> Any:
    needs = Needs(scope, takes_session=True)

    async def visit(request: Request, caller: Annotated[Caller, Depends(needs)]) -> Visit:
        if request.method == "POST":
            check_page(request)
        return Visit(request, caller)

    return Depends(visit)


def check_page(request: Request) -> None:
    """Raise ForeignOrigin unless a form says where it comes from. ``KnownPages`` has refused those of other pages."""
    if "sec-fetch-site" not in request.headers and "origin" not in request.headers:
        raise ForeignOrigin("a form of the dashboard names the page that sends it", field="Origin")


Looks = Annotated[Visit, _visit(Scope.READ)]
"""The visit of somebody who looks."""
Acts = Annotated[Visit, _visit(Scope.SUBMIT)]
"""The visit of somebody who changes jobs."""
Operates = Annotated[Visit, _visit(Scope.ADMIN)]
"""The visit of a key with the scope admin: it acts on the whole server, and sees the tenants that ``sees`` says."""
