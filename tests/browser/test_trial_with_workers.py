"""The page Try before real workers: sounds and pictures are attached, a question is spoken, and answers are heard."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from omni_jobs.database.database import Database
from tests.browser.seeded_jobs import tone
from tests.browser.visitor import Visitor
from tests.integration.api_server import ApiServer, serve
from tests.integration.echo_stack import EchoStack
from tests.oracles import samples

CONFIG = Path(__file__).parents[2] / "stage_configs" / "echo_media.yaml"
WITHIN_MS = 20_000
HALF_A_SECOND = re.compile(r"(0\.[5-9]|[1-9]\d*\.\d) s")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, valkey_server: str) -> Iterator[ApiServer]:
    directory = tmp_path_factory.mktemp("echo_media")
    url = f"sqlite:///{directory / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    options = {"OMNI_JOBS_LEASE_S": "60", "OMNI_JOBS_STORAGE_SYNC": "false"}
    config = CONFIG.read_text(encoding="utf-8")
    stack = EchoStack(directory, url, valkey_server, options, pipeline="echo_media", config=config)
    try:
        stack.start("answer", "sound")
        with serve(stack.settings) as server:
            yield server
    finally:
        stack.close()


def test_a_sound_is_attached_and_its_answer_is_heard(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try")  # the pipeline that has workers comes first
    page.locator("#audio").set_input_files({"name": "tone.wav", "mimeType": "audio/wav", "buffer": tone(1.0)})
    expect(page.locator("#thumbnails-audio")).to_contain_text("tone.wav")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#answer pre[aria-label=text]")).to_contain_text("Hz for 1.00 s", timeout=WITHIN_MS)
    audio = page.locator("#answer audio")
    expect(page.locator("#answer .wave canvas").first).to_be_visible()
    audio.evaluate("(audio) => audio.play()")
    expect(audio).not_to_have_js_property("currentTime", 0)


def test_a_picture_is_attached_and_told_of(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try?pipeline=echo_media")
    picture = samples.image(96, 64)
    page.locator("#image").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": picture})
    page.get_by_label("audio", exact=True).uncheck()
    page.locator("#text").fill("This is")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#answer pre[aria-label=text]")).to_contain_text("96 x 64", timeout=WITHIN_MS)


def test_a_question_is_spoken_and_answered_aloud(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try?pipeline=echo_media")
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#record-time")).to_have_text(HALF_A_SECOND, timeout=WITHIN_MS)
    expect(page.locator("#record-wave canvas").first).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("#thumbnails-audio")).to_contain_text("recording.webm")
    page.get_by_role("button", name="Play it").click()
    page.get_by_role("button", name="Stop it").click()
    page.get_by_role("button", name="Record anew").click()
    expect(page.locator("#record-time")).to_have_text(HALF_A_SECOND, timeout=WITHIN_MS)
    page.get_by_role("button", name="Stop and submit").click()
    expect(page.locator("#thumbnails-audio figure")).to_have_count(1)  # the newer in the place of the older
    expect(page.locator("#answer pre[aria-label=text]")).to_contain_text(" s", timeout=WITHIN_MS)
    expect(page.locator("#answer audio")).not_to_have_js_property("currentTime", 0, timeout=WITHIN_MS)
