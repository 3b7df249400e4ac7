"""Scenes on real workers: jobs are tried, watched, heard, cancelled, retried, forked and held up, by whoever may."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from fastapi.routing import APIRoute
from playwright.sync_api import Browser, Page, expect

from omni_jobs.dashboard.navigation import NAVIGATION
from omni_jobs.dashboard.routes import router
from omni_jobs.database.database import Database
from omni_jobs.states import JobState
from tests.browser.seeded_jobs import tone
from tests.browser.visitor import Visitor, visiting
from tests.integration.api_server import ApiServer, serve
from tests.integration.dashboard.visits import Bearer, with_keys
from tests.integration.echo_stack import EchoStack
from tests.oracles import samples

CONFIG = Path(__file__).parents[2] / "stage_configs" / "echo_media.yaml"
HALF_A_SECOND = re.compile(r"(0\.[5-9]|[1-9]\d*\.\d) s")
ASKED = {"model": "echo_media", "modalities": ["text", "audio"], "messages": [{"role": "user", "content": "A boat"}]}
HELD = {**ASKED, "stages": {"answer": {"delay_s": 600}}}


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As long as this file is there, the worker of the stage ``sound`` can store nothing."""
    return tmp_path_factory.mktemp("fault") / "full"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, valkey_server: str, full_disk: Path) -> Iterator[EchoStack]:
    """Workers of the stages ``answer`` and ``sound``. What ``sound`` cannot store, it does not try again."""
    directory = tmp_path_factory.mktemp("echo_media")
    url = f"sqlite:///{directory / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    options = {"OMNI_JOBS_LEASE_S": "60", "OMNI_JOBS_STORAGE_SYNC": "false"}
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["stages"]["sound"]["retries"] = {"storage": 0}
    stack = EchoStack(
        directory, url, valkey_server, options, pipeline="echo_media", config=yaml.safe_dump(config, sort_keys=False)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_FULL", str(full_disk))
        workers = [stack.launch("answer"), stack.launch("sound", fault="full")]
    try:
        for worker in workers:
            stack.serving(worker)
        yield stack
    finally:
        stack.close()


@pytest.fixture(scope="module")
def api(stack: EchoStack) -> Iterator[ApiServer]:
    with serve(stack.settings) as server:
        yield server


def shown(page: Page, stage: str, state: str) -> None:
    """Wait until the answer beside the form shows this stage in this state."""
    run = page.locator(f"#answer .run.{state}", has=page.locator(".name", has_text=re.compile(f"^{stage}$")))
    expect(run).to_be_visible()


def heard(page: Page, where: str) -> None:
    """Wait for the sound that the job made, and play it."""
    audio = page.locator(f"{where} audio")
    expect(audio).to_have_count(1)
    expect(page.locator(f"{where} .wave canvas").first).to_be_visible()
    assert audio.evaluate("(audio) => audio.duration") > 0
    audio.evaluate("(audio) => audio.play()")
    expect(audio).not_to_have_js_property("currentTime", 0)


def test_a_job_is_submitted_watched_through_its_stages_and_heard(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try")  # the pipeline that has workers comes first
    page.locator("#text").fill("Tell me of a boat that waits for the tide")
    page.locator("#stage-answer > summary").click()
    page.locator('[name="stages.answer.delay_s"]').fill("8")  # a page may see nothing for seconds on a full machine
    page.locator("#stage-sound > summary").click()
    page.locator('[name="stages.sound.delay_s"]').fill("14")
    page.get_by_role("button", name="Submit").click()
    shown(page, "answer", "running")
    shown(page, "sound", "running")
    expect(page.get_by_label("text of answer")).to_contain_text("Tell me")
    shown(page, "answer", "succeeded")
    shown(page, "sound", "running")
    shown(page, "sound", "succeeded")
    expect(page.locator("#answer .state.completed")).to_be_visible()
    expect(page.locator("#answer pre[aria-label=text]")).to_have_text("Tell me of a boat that waits for the tide")
    heard(page, "#answer")
    page.locator("#answer code.id").click()
    page.wait_for_url(re.compile("/jobs/job-"))
    for stage in ("answer", "sound"):
        expect(page.get_by_role("img", name=re.compile(f"^{stage}: .*attempt 1"))).to_be_visible()
    heard(page, "#job")


def test_a_job_is_cancelled_while_it_runs(visitor: Visitor, stack: EchoStack) -> None:
    page = visitor.page
    page.goto("/try?pipeline=echo_media")
    page.locator("#text").fill("A boat and a tide")
    page.locator("#stage-answer > summary").click()
    page.locator('[name="stages.answer.delay_s"]').fill("600")
    page.get_by_role("button", name="Submit").click()
    shown(page, "answer", "running")
    page.locator("#answer").get_by_role("button", name="Cancel").click()
    expect(page.locator("#answer .state.cancelled")).to_be_visible()
    stack.until(lambda: not any(worker.running for worker in stack.jobs.workers()) or None, 20.0)


def test_a_failed_job_is_retried_from_its_second_stage_and_forked_from_it_in_another_voice(
    visitor: Visitor, api: ApiServer, full_disk: Path
) -> None:
    page = visitor.page
    full_disk.touch()
    page.goto("/try?pipeline=echo_media")
    page.locator("#text").fill("A boat and a tide")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Keep what its stages hand on").check()
    page.locator("#stage-sound > summary").click()
    page.locator('[name="stages.sound.delay_s"]').fill("2")  # else its failure may stop the answer
    page.get_by_role("button", name="Submit").click()
    shown(page, "answer", "succeeded")
    expect(page.locator("#answer .state.failed")).to_be_visible()
    full_disk.unlink()
    page.locator("#answer code.id").click()
    expect(page.get_by_role("cell", name="storage_full").first).to_be_visible()
    page.locator("#retry-from").select_option("sound")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator("header .state.completed")).to_be_visible()
    heard(page, "#job")
    job = page.url.rpartition("/")[2]
    page.get_by_text("Fork…").click()
    page.locator("#fork-from").select_option("sound")
    page.locator("#fork-changes").fill('{"audio": {"voice": "nova"}}')
    page.get_by_role("button", name="Submit the fork").click()
    expect(page.get_by_text("Forked from")).to_be_visible()
    expect(page.locator("header .state.completed")).to_be_visible()
    heard(page, "#job")
    fork = page.url.rpartition("/")[2]
    first, second = (api.services.jobs.get(each) for each in (job, fork))
    assert [(stage.name, stage.attempt) for stage in first.stages] == [("answer", 1), ("sound", 2)]
    assert [(stage.name, stage.attempt) for stage in second.stages] == [("answer", 0), ("sound", 1)]
    sounds = [api.http.get(f"/v1/jobs/{each}/artifacts/audio.wav").content for each in (job, fork)]
    assert len(sounds[0]) == len(sounds[1])
    assert sounds[0] != sounds[1]


@contextmanager
def held_back(stack: EchoStack) -> Iterator[None]:
    """Context manager: after the block, wait until the worker of ``answer`` has heard that it may claim nothing."""
    [log] = [worker.log for worker in stack.workers if worker.stage == "answer"]
    before = log.read_text().count(" is paused")
    yield
    stack.until(lambda: log.read_text().count(" is paused") > before or None, 20.0)


def test_a_stage_is_paused_and_its_jobs_say_why_they_wait(visitor: Visitor, api: ApiServer, stack: EchoStack) -> None:
    page = visitor.page
    page.goto("/stages")
    with held_back(stack):
        page.get_by_role("button", name="Pause answer of echo_media").click()
    expect(page.get_by_role("button", name="Resume answer of echo_media")).to_be_visible()
    job = api.http.post("/v1/jobs", json=ASKED).json()["id"]
    page.goto(f"/jobs/{job}")
    waits = page.locator(".notice", has_text="Waits at answer:")
    expect(waits).to_contain_text("paused")
    shows_why = visitor.context.new_page()
    shows_why.goto("/jobs?status=in_progress")
    expect(shows_why.locator(f"#row-{job} .why")).to_contain_text("paused")
    shows_why.goto("/")
    expect(shows_why.get_by_role("link", name=re.compile("^answer 1 queued .* paused$"))).to_be_visible()
    shows_why.goto("/stages")
    shows_why.get_by_role("button", name="Resume answer of echo_media").click()
    expect(page.locator("header .state.completed")).to_be_visible()
    expect(waits).to_have_count(0)


def test_a_worker_is_drained_and_takes_nothing_until_it_is_resumed(
    visitor: Visitor, api: ApiServer, stack: EchoStack
) -> None:
    page, slot = visitor.page, stack.workers[0].slot
    page.goto("/workers")
    with held_back(stack):
        page.get_by_role("button", name=f"Drain {slot}").click()
    expect(page.get_by_text("drained since")).to_be_visible()
    job = api.http.post("/v1/jobs", json=ASKED).json()["id"]
    other = visitor.context.new_page()
    other.goto(f"/jobs/{job}")
    expect(other.locator(".notice", has_text="Waits at answer:")).to_contain_text("worker")
    expect(other.get_by_role("img", name=re.compile("^sound: .*attempt 1"))).to_be_visible()
    assert [stage.attempt for stage in api.services.jobs.get(job).stages if stage.name == "answer"] == [0]
    page.get_by_role("button", name=f"Resume {slot}").click()
    expect(other.locator("header .state.completed")).to_be_visible()


@pytest.fixture(scope="module")
def keyed(stack: EchoStack) -> Iterator[tuple[ApiServer, Mapping[str, Bearer]]]:
    """A server that asks for keys, before the same workers, and the keys."""
    with with_keys(stack.settings) as (server, bearers):
        yield server, bearers


def sign_in(page: Page, bearer: Bearer) -> None:
    page.goto("/signin")
    page.get_by_label("API key").fill(bearer["Authorization"].removeprefix("Bearer "))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/")


PRESSABLE = """[...document.querySelectorAll('form[method="post" i]:not(.signout)')]
    .flatMap((form) => [...form.elements].filter((each) => each.matches("button:enabled")))
    .map((button) => button.outerHTML)"""
POSTED = """async (path) => {
    const body = new FormData();
    body.append("verb", "cancel");
    const answer = await fetch(path, { method: "POST", body, redirect: "manual" });
    return [answer.status, await answer.text()];
}"""


def test_who_may_only_read_finds_no_button_that_works_nor_a_form_that_does(
    keyed: tuple[ApiServer, Mapping[str, Bearer]], browser: Browser
) -> None:
    api, bearers = keyed
    job = api.http.post("/v1/jobs", json=HELD, headers=bearers["operator"]).json()["id"]
    [worker, *_] = api.services.jobs.workers()
    acts = api.services.jobs.acts(at_most=1000)
    with visiting(browser, api.port) as visitor:
        page = visitor.page
        sign_in(page, bearers["reader"])
        expect(page.get_by_text("acme, reads only")).to_be_visible()
        for path in (*(entry.path for entry in NAVIGATION), f"/jobs/{job}", f"/try?pipeline=echo_media&job={job}"):
            page.goto(path)
            assert page.evaluate(PRESSABLE) == [], path
        page.goto(f"/jobs/{job}")
        expect(page.locator("header .state.in_progress")).to_be_visible()
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        page.goto("/jobs")
        expect(page.get_by_role("link", name=job)).to_be_visible()
        expect(page.get_by_role("checkbox")).to_have_count(0)
        names = {
            "key_id": "key-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f",
            "job_id": job,
            "pipeline": "echo_media",
            "stage": "answer",
            "worker_id": worker.id,
            "name": "acme",
        }
        paths = [
            re.sub(
                r"{(\w+)[^}]*}", lambda found: names.get(found[1], "key-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f"), each.path
            )
            for each in router.routes
            if isinstance(each, APIRoute) and "POST" in each.methods and each.path not in ("/signin", "/signout")
        ]
        assert len(paths) > 15
        for path in (*paths, "/v1/jobs"):  # which no session may
            status, text = page.evaluate(POSTED, path)
            refused = 404 if path.startswith("/plug") else 401 if path == "/v1/jobs" else 403
            assert status == refused, (path, text)
        assert api.services.jobs.get(job).status == JobState.IN_PROGRESS
        assert api.services.jobs.acts(at_most=1000) == acts
    api.http.post(f"/v1/jobs/{job}/cancel", headers=bearers["operator"]).raise_for_status()


def test_the_job_of_another_tenant_is_not_there(
    keyed: tuple[ApiServer, Mapping[str, Bearer]], browser: Browser
) -> None:
    api, bearers = keyed
    job = api.http.post("/v1/jobs", json=ASKED, headers=bearers["operator"]).json()["id"]
    own = api.http.post("/v1/jobs", json=ASKED, headers=bearers["other"]).json()["id"]
    with visiting(browser, api.port) as visitor:
        page = visitor.page
        sign_in(page, bearers["other"])
        for path in ("/", "/jobs"):
            page.goto(path)
            expect(page.get_by_role("link", name=own)).to_be_visible()
            expect(page.get_by_text(job)).to_have_count(0)
        for path in (f"/jobs/{job}", f"/try?pipeline=echo_media&job={job}"):
            answer = page.goto(path)
            assert answer is not None
            assert answer.status == 404, path
            expect(page.get_by_role("heading", name="404")).to_be_visible()
        for path in (f"/jobs/{job}/cancel", f"/jobs/{job}/retry", f"/jobs/{job}/fork"):
            status, _ = page.evaluate(POSTED, path)
            assert status == 404, path
        page.goto(f"/audit?target={job}")
        expect(page.get_by_text("Nobody has done anything to")).to_be_visible()
        page.goto("/jobs?tenant=acme")
        assert page.get_by_role("link", name=job).count() == 0


def test_a_sound_is_attached_and_its_answer_is_heard(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try")  # the pipeline that has workers comes first
    page.locator("#audio").set_input_files({"name": "tone.wav", "mimeType": "audio/wav", "buffer": tone(1.0)})
    expect(page.locator("#thumbnails-audio")).to_contain_text("tone.wav")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#answer pre[aria-label=text]")).to_contain_text("Hz for 1.00 s")
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
    expect(page.locator("#answer pre[aria-label=text]")).to_contain_text("96 x 64")


def test_a_question_is_spoken_and_answered_aloud(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/try?pipeline=echo_media")
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#record-time")).to_have_text(HALF_A_SECOND)
    expect(page.locator("#record-wave canvas").first).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("#thumbnails-audio")).to_contain_text("recording.webm")
    page.get_by_role("button", name="Play it").click()
    page.get_by_role("button", name="Stop it").click()
    page.get_by_role("button", name="Record anew").click()
    expect(page.locator("#record-time")).to_have_text(HALF_A_SECOND)
    page.get_by_role("button", name="Stop and submit").click()
    expect(page.locator("#thumbnails-audio figure")).to_have_count(1)  # the newer in the place of the older
    expect(page.locator("#answer pre[aria-label=text]")).to_contain_text(" s")
    expect(page.locator("#answer audio")).not_to_have_js_property("currentTime", 0)
