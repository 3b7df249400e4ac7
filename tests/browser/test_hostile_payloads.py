"""Hostile texts in each field that a client, a model or a worker fills are text on each page, and break no layout."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from omni_jobs.errors import ModelError, WorkerLost
from omni_jobs.jobs import Completion, NewWorker
from omni_jobs.metrics.stage_stats import Histogram, StageStats, WorkerStats
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.browser.seeded_jobs import Hands
from tests.browser.visitor import SIZES, Visitor
from tests.integration.api_server import ApiServer, serve, server_settings

LONG = "W" * 10_000
PAYLOADS = {
    "markup": "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>{{7*7}}'\"><!--",
    "svg": "<svg/onload=document.title='run'><a xlink:href=javascript:alert(1)>x</a></svg>",
    "attribute": "' onfocus=document.title='run' autofocus x=\" onmouseover=\"document.title='run'",
    "bidi": "abc\u202egnp.exe\u2066\u200f",
    "long": LONG,
    "htmx": '<b hx-get="/jobs" hx-trigger="load">x</b>',
    "NUL": "a\\u0000b%00c&#0;d\x1b[31m\x7f",
}
FOREIGN = "main :is([onerror], [onload], [onfocus], [onmouseover], [autofocus], script, [hx-get='/jobs'], [href^=java])"


class Planted:
    """The ids of the jobs whose every field is hostile, by payload and by what became of them."""

    def __init__(self, api: ApiServer) -> None:
        self.hands = Hands(api)
        self.jobs = {name: self._jobs(payload) for name, payload in PAYLOADS.items()}
        self._quarantined(LONG)
        keys, stage = ApiKeys(api.services.db), api.services.pipelines["echo"].stage_id("second")
        Tenants(api.services.db).create("acme")
        for number, payload in enumerate(PAYLOADS.values()):
            if payload.isprintable():
                key = keys.create("acme", ["read"], name=payload[:100])
                keys.revoke(key.id, by=payload[:200])
            info = {"device": payload[:100], "versions": {payload[:60]: payload[:100]}}
            name = f"w{number}"
            api.services.jobs.register_worker(
                NewWorker(name, payload[:200], stage, payload[:60], 1, 4, payload[:40], info=info), 600.0
            )
            stats = StageStats({"run": Histogram({"0.5": 4}, 9.0)}, {"completed": 4, payload[:60]: 1})
            api.services.jobs.renew(name, 600.0, stats=WorkerStats(stats).to_json())
            api.services.jobs.drain(name, by=payload[:200])

    def _jobs(self, payload: str) -> dict[str, str]:
        hands, label = self.hands, {payload[:60]: payload[:500]}
        jobs = {word: hands.submitted(payload, metadata=label) for word in ("failed", "completed", "running")}
        hands.failed(jobs["failed"], error=ModelError(payload))
        hands.made(hands.claimed(jobs["completed"]))
        claim = hands.claimed(jobs["completed"], "second")
        done = Completion(
            claim.stage_run_id, claim.attempt, "worker-second", inline_payload=b"x", payload_bytes=1,
            result={"text": payload, payload[:60]: {payload[:60]: payload}},
            warnings=[{"code": "w", "message": payload}], finish_reason=payload[:40],
        )  # fmt: skip
        assert hands.api.services.jobs.report([done])[0].won
        hands.told(hands.claimed(jobs["running"]), 1, text=payload, unit=payload[:60])
        return jobs

    def _quarantined(self, payload: str) -> None:
        hands = self.hands
        for each in (payload, *PAYLOADS.values()):
            job = hands.submitted()
            while not hands.api.services.jobs.get(job).status.is_final:
                hands.failed(job, error=WorkerLost(each))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path, valkey_server: str) -> Iterator[ApiServer]:
    directory = tmp_path_factory.mktemp("hostile")
    path = directory / "jobs.sqlite"
    path.write_bytes(_sqlite_template.read_bytes())
    with serve(server_settings(directory, valkey_server, database_url=f"sqlite:///{path}")) as server:
        yield server


@pytest.fixture(scope="module")
def planted(api: ApiServer) -> Planted:
    return Planted(api)


def check(visitor: Visitor, what: object) -> None:
    """The page runs nothing of what it shows, and fits each screen, with all that is folded unfolded."""
    page = visitor.page
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert "run" not in page.title(), what
    assert page.locator(FOREIGN).count() == 0, what
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        assert not visitor.is_wider_than_its_screen(), (what, width)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/jobs", "/jobs?status=failed", "/stages", "/workers", "/errors", "/quarantine"),
        *("/tenants", "/tenants/acme", "/audit", "/audit?target=acme", "/try?pipeline=echo"),
    ],
)
def test_pages_of_many_show_hostile_texts_as_text(planted: Planted, visitor: Visitor, path: str) -> None:
    visitor.page.goto(path)
    check(visitor, path)


@pytest.mark.parametrize("name", PAYLOADS)
def test_the_page_of_a_job_and_the_answer_to_a_try_show_them_as_text(
    planted: Planted, visitor: Visitor, name: str
) -> None:
    page, jobs = visitor.page, planted.jobs[name]
    for word, job in jobs.items():
        page.goto(f"/jobs/{job}")
        with page.expect_response(f"**/fragments/jobs/{job}/request"):
            page.get_by_text("Request, and how to send it again").click()
        expect(page.get_by_role("heading", name="curl")).to_be_visible()
        check(visitor, (name, word))
        page.goto(f"/try?pipeline=echo&job={job}")
        check(visitor, (name, word, "try"))
    page.goto(f"/jobs/{jobs['running']}")
    assert page.get_by_label("text of first").text_content() == PAYLOADS[name]
    page.goto(f"/jobs/{jobs['completed']}")
    assert page.get_by_label("text", exact=True).text_content() == PAYLOADS[name]


def places(payload: str) -> list[str]:
    """The addresses that say a payload back. A slash would make a path of it that is no page's."""
    word = quote(payload[:300].replace("/", ""), safe="")
    return [
        *(f"/jobs?status={word}", f"/jobs?pipeline={word}", f"/jobs?metadata={word}%3D{word}", f"/jobs?{word}=1"),
        *(f"/jobs?cursor={word}", f"/jobs/{word}", f"/audit?target={word}", f"/audit?cursor={word}", f"/?over={word}"),
        *(f"/quarantine?cursor={word}", f"/errors?over={word}", f"/tenants/{word}", f"/try?pipeline={word}"),
        *(f"/try?pipeline=echo&job={word}", f"/keys/{word}/revoke"),
    ]


@pytest.mark.parametrize("name", ["markup", "attribute", "bidi", "long", "NUL"])
def test_what_an_address_says_is_text_and_what_is_unknown_is_a_page_that_says_so(
    api: ApiServer, visitor: Visitor, name: str
) -> None:
    page = visitor.page
    for path in places(PAYLOADS[name]):
        answer = page.goto(path)
        assert answer is not None
        asks = path.startswith(("/audit?target", "/jobs?pipeline", "/jobs?metadata"))  # which may match nothing
        assert answer.status in (200, 404, 422) if asks else answer.status in (404, 422), (path, answer.status)
        if answer.status != 200:
            expect(page.get_by_role("heading", name=str(answer.status), exact=True)).to_be_visible()
        check(visitor, path)


@pytest.mark.parametrize("name", ["markup", "attribute", "bidi", "long", "NUL"])
def test_a_form_says_back_what_was_typed_as_text(api: ApiServer, visitor: Visitor, name: str) -> None:
    page, payload = visitor.page, PAYLOADS[name].replace("\x1b", "").replace("\x7f", "")
    page.goto("/try?pipeline=echo")
    page.locator("#text").fill(payload)
    page.get_by_text("More", exact=True).click()
    page.locator("#seed").fill(payload[:300])
    page.locator("#stage-first > summary").click()
    page.locator('[name="stages.first.delay_s"]').fill(payload[:300])
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#problem-seed")).to_be_visible()
    expect(page.locator("#text")).to_have_value(payload)
    check(visitor, name)
    if name == "long":  # which a tenant may be called
        return
    page.goto("/tenants")
    page.locator("form.fields").evaluate("(form) => { form.noValidate = true; }")
    page.locator('input[name="name"]').fill(payload[:60])
    page.get_by_role("button", name="Make the tenant").click()
    expect(page.get_by_role("heading", name="422")).to_be_visible()
    check(visitor, name)
