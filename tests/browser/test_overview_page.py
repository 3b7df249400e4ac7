"""The overview in a browser: the drawings of pipelines, the newest jobs and what they made, and who sees what."""

import base64

from playwright.sync_api import expect

from omni_jobs.jobs import NewWorker
from tests.browser.seeded_jobs import ECHO, Hands, one_of_each
from tests.browser.visitor import Visitor, check_looks
from tests.integration.api_server import ApiServer
from tests.oracles import samples

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>document.title = 'run'</script></svg>"


def test_the_overview_looks_well(api: ApiServer, visitor: Visitor) -> None:
    one_of_each(api)
    check_looks(visitor, "/")


def test_an_overview_of_nothing_looks_well(visitor: Visitor) -> None:
    check_looks(visitor, "/")


def test_a_stage_shows_its_load_and_why_it_stands_still(api: ApiServer, visitor: Visitor) -> None:
    job = Hands(api).submitted()
    visitor.page.goto("/")
    first = visitor.page.get_by_role("link", name="first 1 queued 0 of 0 slots 0 workers no worker")
    expect(first).to_be_visible()
    echo = api.services.pipelines["echo"]
    worker = NewWorker("w", "w", echo.stage_id("first"), "host", 1, 5, echo.version)
    api.services.jobs.register_worker(worker, 600.0)
    api.services.jobs.claim("w", 1)
    expect(visitor.page.get_by_role("link", name="first 0 queued 1 of 5 slots 1 worker")).to_be_visible()
    api.services.jobs.pause(echo.stage_id("first"))
    expect(visitor.page.get_by_role("link", name="1 worker paused")).to_be_visible()
    visitor.page.get_by_role("link", name=job).focus()
    expect(visitor.page.get_by_role("link", name=job)).to_be_focused()


def test_the_newest_jobs_show_what_they_have_made(api: ApiServer, visitor: Visitor) -> None:
    hands, page = Hands(api), visitor.page
    job = hands.submitted()
    claim = hands.claimed(job)
    hands.made(
        claim,
        large=("image/png", samples.image(96, 64)),
        small=("image/webp", samples.image(40, 80, format="WEBP")),
        drawing=("image/svg", SVG),
        sound=("audio/wav", b"RIFF"),
    )
    loads: list[str] = []
    page.on("request", lambda request: loads.append(request.url) if "/artifacts/" in request.url else None)
    page.goto("/")
    expect(page.get_by_alt_text(f"large.png of {job}")).to_have_js_property("naturalWidth", 96)
    expect(page.get_by_alt_text(f"small.webp of {job}")).to_have_js_property("naturalWidth", 40)
    assert page.locator("td img").count() == 2
    for name in ("drawing.svg", "sound.wav"):
        expect(page.get_by_role("link", name=name)).to_be_visible()
    hands.submitted()
    expect(page.locator(".newest tbody tr")).to_have_count(2)  # the page was drawn anew
    assert len(loads) == 2


def data_url(width: int) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(samples.image(width, 16, format='JPEG')).decode()}"


def test_the_newest_preview_of_a_job_that_runs_is_shown(api: ApiServer, visitor: Visitor) -> None:
    hands = Hands(api)
    job = hands.submitted()
    claim = hands.claimed(job)
    hands.told(claim, 5, picture=data_url(24))
    visitor.page.goto("/")
    shown = visitor.page.get_by_alt_text(f"preview of {job}")
    expect(shown).to_have_js_property("naturalWidth", 24)
    hands.told(claim, 10, picture=data_url(32))
    expect(shown).to_have_js_property("naturalWidth", 32)
    expect(visitor.page.get_by_text("10 / 64 tokens")).to_be_visible()


def test_without_javascript_all_of_it_is_there(api: ApiServer, visitor: Visitor) -> None:
    job = Hands(api).submitted()
    html = visitor.context.request.get("/").text()
    assert job in html
    assert "no worker" in html
    again = visitor.context.request.get("/fragments/overview")
    same = visitor.context.request.get("/fragments/overview", headers={"If-None-Match": again.headers["etag"]})
    assert (again.status, same.status) == (200, 304)
    assert ECHO["model"] in html
