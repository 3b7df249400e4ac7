"""A question is spoken into a browser, on the page Try, and answered aloud by the pipeline ``voice``."""

import re
from pathlib import Path

import pytest
import soundfile  # type: ignore[import-untyped]
from playwright.sync_api import expect
from rich.console import Console

from demo.checkpoints import smollm2_checkpoint
from omni_jobs.client import Client
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests.browser.visitor import visiting
from tests.oracles.word_errors import word_error_rate
from tests.services.chromium import running_chromium
from tests.spoken import hibari

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

QUESTION = "What should I do when I cannot sleep at night?"
ANSWERED_MS = 300_000
MICROPHONE = "--use-file-for-fake-audio-capture"


def test_a_question_is_spoken_and_its_answer_is_heard(tmp_path: Path) -> None:
    samples, file = hibari()(QUESTION, seed=0), tmp_path / "question.wav"
    soundfile.write(file, samples, 24_000, subtype="PCM_16")
    seconds = len(samples) / 24_000
    settings = Settings(data_dir=tmp_path / "data", models={"voice.think": smollm2_checkpoint(Console())})
    with (
        EmbeddedStack(settings, pipelines=["voice"], temporary=True) as stack,
        running_chromium(f"{MICROPHONE}={file}%noloop") as browser,
        visiting(browser, int(stack.url.rpartition(":")[2])) as visitor,
        Client(stack.url) as client,
    ):
        page = visitor.page
        page.goto("/try")
        page.get_by_role("button", name="Record").click()
        page.wait_for_function(
            "(seconds) => parseFloat(document.getElementById('record-time').textContent) > seconds",
            arg=seconds + 0.5,
            timeout=60_000,
        )
        page.get_by_role("button", name="Stop and submit").click()
        expect(page.locator("#answer .state.completed")).to_be_visible(timeout=ANSWERED_MS)
        audio = page.locator("#answer audio")
        expect(audio).not_to_have_js_property("currentTime", 0)  # what was spoken is answered aloud, by itself
        assert audio.evaluate("(audio) => audio.duration") > 0.5
        expect(page.locator("#answer pre[aria-label=text]")).to_have_text(re.compile(r"\w"))
        job = client.get(page.locator("#answer code.id").inner_text())
    assert job.result is not None
    assert word_error_rate(QUESTION, job.result["texts"]["listen"]) <= 0.3
