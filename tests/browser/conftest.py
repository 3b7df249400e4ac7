"""A browser for the dashboard: it leaves no origin, hears of each violation of the policy, and can ask axe."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from omni_jobs.settings import Settings
from tests.browser.visitor import Visitor, visiting
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.services.chromium import running_chromium


@pytest.fixture(scope="package")  # an event loop runs in this thread meanwhile, so tests that have one come later
def browser() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def settings(sqlite_url: str, valkey_server: str, tmp_path: Path) -> Settings:
    return server_settings(tmp_path, valkey_server, database_url=sqlite_url)


@pytest.fixture
def api(settings: Settings) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


@pytest.fixture
def visitor(browser: Browser, api: ApiServer) -> Iterator[Visitor]:
    """Who looks at the dashboard of ``api``."""
    with visiting(browser, api.port) as visitor:
        yield visitor
