"""Hostile texts in each field that a client or a model fills are shown as text, run nothing, and break no layout."""

import pytest
from playwright.sync_api import expect

from omni_jobs.errors import ModelError
from omni_jobs.jobs import NewWorker
from tests.browser.seeded_jobs import Hands
from tests.browser.visitor import SIZES, Visitor
from tests.integration.api_server import ApiServer

MARKUP = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>{{7*7}}'\"><!--"
BIDI = "abc\u202egnp.exe\u2066\u200f"
LONG = "W" * 10_000
PAYLOADS = {
    "markup": MARKUP,
    "svg": "<svg/onload=document.title='run'><a xlink:href=javascript:alert(1)>x</a></svg>",
    "attribute": "' onfocus=document.title='run' autofocus x=\" onmouseover=\"document.title='run'",
    "bidi": BIDI,
    "long": LONG,
    "htmx": '<b hx-get="/jobs" hx-trigger="load">x</b>',
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_hostile_text_is_text_wherever_it_is_shown(api: ApiServer, visitor: Visitor, payload: str) -> None:
    hands, page = Hands(api), visitor.page
    label = {payload[:60]: payload[:500]}
    echo = api.services.pipelines["echo"]
    names = [payload[:200], payload[:60]]
    api.services.jobs.register_worker(NewWorker("w", names[0], echo.stage_id("second"), names[1], 1, 4, "1"), 600.0)
    failed = hands.submitted(payload, metadata=label)
    hands.failed(failed, error=ModelError(payload))
    done = hands.submitted(payload, metadata=label)
    hands.completed(done, payload)
    running = hands.submitted(payload, metadata=label)
    hands.told(hands.claimed(running), 1, text=payload, unit=payload[:60])
    for path in ("/", "/jobs", *(f"/jobs/{job}" for job in (failed, done, running))):
        for width, height in SIZES:
            with visitor.looks(width, height, "dark"):
                page.goto(path)
                assert "run" not in page.title()
                assert (
                    page.locator(
                        "[onerror], [onload], [onfocus], [onmouseover], main script, main [hx-get='/jobs']"
                    ).count()
                    == 0
                )
                assert not visitor.is_wider_than_its_screen(), (path, width)
    page.goto(f"/jobs/{running}")
    expect(page.get_by_label("text of first")).to_have_text(payload)
    page.get_by_text("Request, and how to send it again").click()
    expect(page.get_by_role("heading", name="curl")).to_be_visible()
    assert page.locator("[onerror], main script").count() == 0
