"""The page of a job in a browser: its text as it grows, sound, pictures, attempts, and what is done to it."""

from playwright.sync_api import expect

from omni_jobs.errors import WorkerLost
from omni_jobs.jobs import MOST_TEXT
from tests.browser.seeded_jobs import Hands, one_of_each, tone
from tests.browser.visitor import Visitor, check_looks
from tests.integration.api_server import ApiServer


def test_the_pages_of_jobs_look_well(api: ApiServer, visitor: Visitor) -> None:
    jobs = one_of_each(api)
    for name in ("media", "failed", "running"):
        check_looks(visitor, f"/jobs/{jobs[name]}")


def test_the_text_of_a_job_grows_and_becomes_its_result(api: ApiServer, visitor: Visitor) -> None:
    hands, page = Hands(api), visitor.page
    job = hands.submitted()
    claim = hands.claimed(job)
    hands.told(claim, 3, text="Once 😀 upon")
    page.goto(f"/jobs/{job}")
    growing = page.get_by_label("text of first")
    expect(growing).to_have_text("Once 😀 upon")
    hands.wrote(claim, 0, "Once 😀 upon a")
    expect(growing).to_have_text("Once 😀 upon a")
    hands.wrote(claim, 13, " time <b>there</b>")
    expect(growing).to_have_text("Once 😀 upon a time <b>there</b>")
    hands.made(claim)
    hands.made(hands.claimed(job, "second"), "The end.")
    expect(page.locator(".state.completed")).to_be_visible()
    expect(page.get_by_label("text", exact=True)).to_have_text("The end.")
    expect(growing).to_have_count(0)


def test_a_text_that_is_too_long_for_the_first_answer_comes_whole(api: ApiServer, visitor: Visitor) -> None:
    hands, page = Hands(api), visitor.page
    job, text = hands.submitted(), "".join(f"{n} " for n in range(20_000))
    assert len(text) > MOST_TEXT
    claim = hands.claimed(job)
    hands.told(claim, 3, text=text)
    page.goto(f"/jobs/{job}")
    hands.wrote(claim, 0, text)
    growing = page.get_by_label("text of first")
    expect(growing).to_contain_text("0 1 2 3 ")
    expect(growing).to_contain_text(text[-100:].strip())
    assert len(growing.text_content() or "") == len(text)


def test_a_sound_has_a_waveform_and_plays(api: ApiServer, visitor: Visitor) -> None:
    hands, page = Hands(api), visitor.page
    job = hands.submitted()
    hands.completed(job, audio=("audio/wav", tone(2.0)))
    page.goto(f"/jobs/{job}")
    audio = page.locator("audio")
    expect(audio).to_have_js_property("duration", 2)
    expect(page.locator(".wave canvas").first).to_be_visible()
    audio.evaluate("(audio) => audio.play()")
    expect(audio).not_to_have_js_property("currentTime", 0)


def test_the_attempts_of_a_stage_and_their_errors_are_shown(api: ApiServer, visitor: Visitor) -> None:
    hands, page = Hands(api), visitor.page
    job = hands.submitted()
    hands.failed(job, error=WorkerLost("the worker's lease ran out"))
    page.goto(f"/jobs/{job}")
    expect(page.get_by_role("heading", name="Errors by attempt")).to_be_visible()
    expect(page.get_by_role("cell", name="worker_lost the worker's lease ran out")).to_be_visible()
    expect(page.get_by_role("img", name="attempt 1 failed")).to_be_visible()


def test_a_failed_job_is_retried_from_its_second_stage_and_forked(api: ApiServer, visitor: Visitor) -> None:
    hands, page = Hands(api), visitor.page
    job = hands.submitted(keep_payloads=True)
    hands.made(hands.claimed(job))
    hands.failed(job, "second")
    page.goto(f"/jobs/{job}")
    page.locator("#retry-from").select_option("second")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator("header .state.in_progress, header .state.queued")).to_be_visible()
    hands.made(hands.claimed(job, "second"), "Well.")
    expect(page.locator(".state.completed")).to_be_visible()
    page.get_by_text("Fork…").click()
    page.get_by_role("button", name="Submit the fork").click()
    expect(page.get_by_text("Forked from")).to_be_visible()
    assert page.url.rpartition("/")[2] != job
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("header .state.cancelled")).to_be_visible()


def test_the_payloads_are_read_once_they_are_asked_for(api: ApiServer, visitor: Visitor) -> None:
    page = visitor.page
    page.goto(f"/jobs/{one_of_each(api)['media']}")
    page.get_by_text("Payloads that its stages left").click()
    expect(page.get_by_role("cell", name="1 bytes are not even a header's length").first).to_be_visible()
    assert visitor.faults() == []


def test_a_request_is_shown_and_sent_again_by_a_copy(api: ApiServer, visitor: Visitor) -> None:
    page = visitor.page
    page.goto(f"/jobs/{Hands(api).submitted('A lighthouse')}")
    page.get_by_text("Request, and how to send it again").click()
    expect(page.get_by_role("heading", name="curl")).to_be_visible()
    expect(page.get_by_text("A lighthouse").first).to_be_visible()
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".copied", has_text="curl").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("curl http://localhost")
