"""The scripts of other projects do their work under the dashboard's policy, which allows no eval and nothing inline."""

import itertools
import re

import pytest
from playwright.sync_api import expect

from omni_jobs.settings import Settings
from tests.browser.visitor import Visitor


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"auth": "keys"})  # so that there is a page which shows nothing


def test_htmx_polls_and_morphs_without_eval(visitor: Visitor) -> None:
    answers = itertools.count(1)
    visitor.context.route("**/part", lambda route: route.fulfill(body=part(next(answers)), content_type="text/html"))
    visitor.page.goto("/signin")
    assert visitor.page.evaluate("typeof window.htmx") == "object"
    visitor.page.evaluate(
        """(html) => {
            const main = document.getElementById("main");
            main.append(document.createRange().createContextualFragment(html));
            htmx.process(main);
        }""",
        part(0),
    )
    visitor.page.locator("#part input").fill("typed")
    expect(visitor.page.locator("#part b")).to_have_text(re.compile(r"[3-9]|\d\d"))
    expect(visitor.page.locator("#part input")).to_have_value("typed")  # what a person types outlives the morph


def part(number: int) -> str:
    return (
        f'<div id="part" hx-get="/part" hx-trigger="every 100ms" hx-swap="outerMorph"><b>{number}</b>'
        '<input id="field" aria-label="field"></div>'
    )
