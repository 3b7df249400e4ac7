"""The page Try in a browser: what is typed becomes a job whose answer comes beside it, and errors lose nothing."""

import re

from playwright.sync_api import Browser, FilePayload, expect

from tests.browser.seeded_jobs import Hands, one_of_each, tone
from tests.browser.visitor import Visitor, check_looks
from tests.integration.api_server import ApiServer
from tests.oracles import samples

PICTURE: FilePayload = {"name": "boat.png", "mimeType": "image/png", "buffer": samples.image(96, 64)}


def job_beside(visitor: Visitor) -> str:
    """The job whose answer stands beside the form."""
    link = visitor.page.locator("#answer code.id")
    expect(link).to_be_visible()
    return link.inner_text()


def test_the_form_looks_well(api: ApiServer, visitor: Visitor) -> None:
    jobs = one_of_each(api)
    for path in ("/try?pipeline=echo_media", f"/try?pipeline=echo&job={jobs['media']}"):
        check_looks(visitor, path)


def test_what_is_typed_is_answered_beside_it_as_it_comes(api: ApiServer, visitor: Visitor) -> None:
    hands, page = Hands(api), visitor.page
    page.goto("/try?pipeline=echo")
    page.locator("#text").fill("Tell me a story")
    page.keyboard.press("Control+Enter")
    job = job_beside(visitor)
    assert f"job={job}" in page.url
    claim = hands.claimed(job)
    hands.wrote(claim, 0, "Once 😀 upon")
    expect(page.get_by_label("text of first")).to_have_text("Once 😀 upon")
    hands.wrote(claim, 11, " a time")
    expect(page.get_by_label("text of first")).to_have_text("Once 😀 upon a time")
    hands.made(claim)
    hands.made(
        hands.claimed(job, "second"), "The end.", audio=("audio/wav", tone(1.0)), image=("image/png", PICTURE["buffer"])
    )
    expect(page.locator("#answer pre[aria-label=text]")).to_have_text("The end.")
    expect(page.locator("#answer audio")).to_have_js_property("duration", 1)
    expect(page.locator("#answer .wave canvas").first).to_be_visible()
    expect(page.get_by_alt_text("image.png")).to_have_js_property("naturalWidth", 96)
    expect(page.locator("#text")).to_have_value("Tell me a story")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#answer .state.queued")).to_be_visible()
    assert job_beside(visitor) != job  # the same again is another job, because it was answered
    page.locator("#answer").get_by_role("button", name="Cancel").click()
    expect(page.locator("#answer .state.cancelled")).to_be_visible()


def test_an_error_stands_beside_its_field_and_takes_nothing_away(api: ApiServer, visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try?pipeline=echo_media")
    page.locator("#text").fill("A boat")
    page.locator("#image").set_input_files(PICTURE)
    expect(page.locator("#thumbnails-image canvas")).to_be_visible()
    page.locator("#stage-answer > summary").click()
    delay = page.locator('[name="stages.answer.delay_s"]')
    delay.fill("5000")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator('[id="problem-stages.answer.delay_s"]')).to_contain_text("less than or equal to 3600")
    expect(delay).to_be_focused()
    expect(delay).to_have_value("5000")
    expect(page.locator("#text")).to_have_value("A boat")
    expect(page.locator("#thumbnails-image canvas")).to_be_visible()
    assert visitor.faults() == []
    delay.fill("")
    page.get_by_role("button", name="Submit").click()
    job = job_beside(visitor)
    expect(page.locator('[id^="problem-"]')).to_have_count(0)
    [message] = api.services.jobs.admitted_request(job)["messages"]
    assert [part["type"] for part in message["content"]] == ["image", "text"]


def test_only_the_stages_that_the_answer_needs_have_fields(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try?pipeline=echo_media")
    expect(page.locator("#stage-video")).to_be_hidden()
    page.get_by_label("video", exact=True).check()
    expect(page.locator("#stage-video")).to_be_visible()
    expect(page.get_by_label("format of the video")).to_be_enabled()


def test_what_was_typed_comes_along_to_another_pipeline(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try?pipeline=echo")
    page.locator("#text").fill("Hello")
    page.get_by_role("link", name="echo_media").click()
    page.wait_for_url(re.compile("echo_media"))
    expect(page.locator("#text")).to_have_value("Hello")


def test_the_name_of_a_file_is_text(visitor: Visitor) -> None:
    page, name = visitor.page, "<img src=x onerror=\"document.title='run'\">\u202egnp.png"
    page.goto("/try?pipeline=echo_media")
    page.locator("#image").set_input_files({**PICTURE, "name": name, "buffer": b"no picture"})
    expect(page.locator("#thumbnails-image figcaption")).to_contain_text("onerror")
    assert page.locator("[onerror]").count() == 0
    page.get_by_role("button", name="Take away").click()
    expect(page.locator("#thumbnails-image figure")).to_have_count(0)


def test_a_server_that_is_away_loses_nothing(api: ApiServer, visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try?pipeline=echo")
    page.locator("#text").fill("Hello")
    visitor.context.set_offline(True)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("No answer from the server")
    expect(page.locator("#text")).to_have_value("Hello")
    visitor.context.set_offline(False)
    page.get_by_role("button", name="Submit").click()
    assert job_beside(visitor)


def test_it_works_without_javascript(api: ApiServer, browser: Browser) -> None:
    with browser.new_context(base_url=f"http://localhost:{api.port}", java_script_enabled=False) as context:
        page = context.new_page()
        page.goto("/try?pipeline=echo_media")
        page.locator("#text").fill("A boat")
        page.locator("#image").set_input_files(PICTURE)
        page.get_by_text("More", exact=True).click()
        page.get_by_label("Seed").fill("x")
        page.get_by_role("button", name="Submit").click()
        expect(page.locator("#problem-seed")).to_be_visible()
        expect(page.locator("#text")).to_have_value("A boat")
        page.locator("#seed").fill("7")
        page.locator("#image").set_input_files(PICTURE)
        page.get_by_role("button", name="Submit").click()
        page.wait_for_url(re.compile("/jobs/job-"))
        assert api.services.jobs.get(page.url.rpartition("/")[2]).seed == 7
