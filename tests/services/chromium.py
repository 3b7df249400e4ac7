"""The browser of the tests and of scripts/screenshots: this machine's own Chromium, or that of scripts/browser."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

from tests.services import missing

__all__ = ["chromium_program", "running_chromium"]

_BROUGHT = Path(__file__).parents[2] / ".venv" / "browser"  # scripts/browser makes it
_FONTS = _BROUGHT / "fonts" / "fonts.conf"
_INSTALLED = ("chromium", "google-chrome")
_EACH = (
    *(
        "--lang=en-US",
        "--no-sandbox",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-sync",
    ),
    *("--disable-component-update", "--autoplay-policy=no-user-gesture-required", "--font-render-hinting=none"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)
# A page asks every 2 s for what a server keeps for up to 4 s on a busy machine.
_EXPECTED_WITHIN_MS = 20_000
_OF_INSTALLED = ("--disable-gpu",)
# It draws in software, in the browser's own process. Each process that it does not start is time of a test.
_OF_BROUGHT = (
    *("--headless=shell", "--no-zygote", "--in-process-gpu"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
)


def chromium_program() -> str | None:
    """Return the program to start: an installed one, else the one that scripts/browser brought; None without any."""
    found = (shutil.which(name) for name in (*_INSTALLED, _BROUGHT / "chromium" / "chromium"))
    return next((program for program in found if program is not None), None)


@contextmanager
def running_chromium(*options: str) -> Iterator[Browser]:
    """A browser without a window, started with these options as well; the test is skipped where there is none.

    It has the fonts of scripts/browser alone, where these are there.
    """
    program = chromium_program()
    if program is None:
        missing("no browser: scripts/browser brings one")
    # Its scripts have the language of the environment, and no formatter knows that of C.
    environment: dict[str, str | float | bool] = os.environ | {"LC_ALL": "en_US.UTF-8"}
    if _FONTS.is_file():
        environment["FONTCONFIG_FILE"] = str(_FONTS)
    brought = Path(program).is_relative_to(_BROUGHT)
    if brought:
        environment["LD_LIBRARY_PATH"] = str(_BROUGHT / "chromium" / "lib")
    arguments = [*_EACH, *(_OF_BROUGHT if brought else _OF_INSTALLED), *options]
    expect.set_options(timeout=_EXPECTED_WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments, env=environment)
        try:
            yield browser
        finally:
            browser.close()
