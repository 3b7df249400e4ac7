"""A browser for the dashboard: it leaves no origin, hears of each violation of the policy, and can ask axe."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from omni_jobs.settings import Settings
from tests.browser.visitor import Visitor
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.services import missing

CHROMIUM = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
]


@pytest.fixture(scope="package")  # an event loop runs in this thread meanwhile, so tests that have one come later
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        missing("no chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def settings(sqlite_url: str, valkey_server: str, tmp_path: Path) -> Settings:
    return server_settings(tmp_path, valkey_server, database_url=sqlite_url)


@pytest.fixture
def api(settings: Settings) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


@pytest.fixture
def visitor(browser: Browser, api: ApiServer) -> Iterator[Visitor]:
    """Who looks at the dashboard of ``api``. At the end nothing has left its origin, and nothing broke the policy."""
    with browser.new_context(base_url=f"http://localhost:{api.port}") as context:
        visitor = Visitor(context, context.new_page())
        context.route(re.compile(rf"^(?!http://localhost:{api.port}/|data:|blob:)"), visitor.block)
        yield visitor
        assert visitor.left == []
        assert visitor.violations == []
