"""Take the pictures of the dashboard that README.md and docs/operations/dashboard.md show. scripts/screenshots runs it.

It starts a whole stack with real workers, speech and pictures, and with jobs that run, wait, have failed and were
killed. It takes some minutes, and needs the browser and the fonts of scripts/browser.
"""

import argparse
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Error, Page, expect

from omni_jobs.errors import OmniJobsError
from tests.browser.lively_stack import LivelyStack, lively_stack
from tests.browser.visitor import Scheme
from tests.drawn_scenes import lighthouse
from tests.services.chromium import chromium_program, running_chromium

IMAGES = Path(__file__).parents[2] / "docs" / "img"
PREFIX = "dashboard-"
MOST_BYTES = 150_000
_SCALE = 1.5  # pixels of a picture for each of the page
_QUALITY = (86, 76, 66, 50)  # of WebP: the first that is small enough
_WITHIN_MS = 60_000
_WIDE, _NARROW = (1280, 800), (360, 740)


@dataclass(frozen=True)
class Picture:
    """``ready`` brings the page to what the picture shows; ``size``: of the window, in pixels of the page."""

    name: str
    path: str
    ready: Callable[[Page, LivelyStack], None]
    size: tuple[int, int] = _WIDE
    scheme: Scheme = "light"


def _at_once(page: Page, lively: LivelyStack) -> None:
    """Nothing has to come."""


def _with_charts(page: Page, lively: LivelyStack) -> None:
    expect(page.locator("#charts canvas").first).to_be_visible()


def _with_media(page: Page, lively: LivelyStack) -> None:
    expect(page.locator(".wave canvas").first).to_be_visible(timeout=_WITHIN_MS)
    audio = page.locator("audio").first
    audio.evaluate("(audio) => { audio.currentTime = audio.duration / 3 }")
    expect(audio).to_have_js_property("seeking", False)
    for video in page.locator("video").all():
        video.evaluate("async (video) => { await video.play(); video.pause(); video.currentTime = 1 }")
        expect(video).to_have_js_property("seeking", False, timeout=_WITHIN_MS)


def _with_answer(page: Page, lively: LivelyStack) -> None:
    page.locator("#text").fill("A lighthouse in the fog 🌊 灯塔在雾中")
    drawn = io.BytesIO()
    lighthouse().save(drawn, format="PNG")
    page.locator("#image").set_input_files(
        {"name": "lighthouse.png", "mimeType": "image/png", "buffer": drawn.getvalue()}
    )
    for output in ("audio", "image"):
        page.get_by_label(output, exact=True).check()
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#answer .wave canvas").first).to_be_visible(timeout=_WITHIN_MS)
    expect(page.locator("#answer img").first).to_be_visible(timeout=_WITHIN_MS)


def _after_a_kill(page: Page, lively: LivelyStack) -> None:
    """Kill a worker and the broker under the stream, and wait until jobs go on."""
    for process in ("worker echo.first", "the broker"):
        button = page.get_by_role("button", name=f"Kill {process}")
        expect(button).to_be_enabled(timeout=_WITHIN_MS)
        button.click()
        newest = page.locator(".kills tbody tr:first-child", has_text=process)
        expect(newest.locator(".went-on")).to_have_text(re.compile(" s$"), timeout=_WITHIN_MS)


def _resumed(page: Page, lively: LivelyStack) -> None:
    """The stream's jobs are of the pipeline with the paused stage."""
    page.goto("/stages")
    page.get_by_role("button", name="Resume second of echo", exact=True).click()
    expect(page.get_by_role("button", name="Pause second of echo", exact=True)).to_be_visible()
    page.goto("/plug")
    _after_a_kill(page, lively)


PICTURES = (  # in the order in which they are taken
    Picture("stages", "/stages", _at_once, (1280, 980)),
    Picture("overview", "/?over=day", _with_charts, (1280, 1000)),
    Picture("overview-dark", "/?over=day", _with_charts, (1280, 1000), "dark"),
    Picture("overview-small", "/", _at_once, _NARROW),
    Picture("job", "/jobs/{told}", _with_media, (1280, 1250)),
    Picture("job-dark", "/jobs/{told}", _with_media, (1280, 1250), "dark"),
    Picture("speech", "/jobs/{spoken}", _with_media),
    Picture("jobs", "/jobs?metadata=project%3Dcape", _at_once),
    Picture("errors", "/errors?over=hour", _at_once),
    Picture("workers", "/workers", _at_once),
    Picture("quarantine", "/quarantine", _at_once, (1280, 560)),
    Picture("tenants", "/tenants", _at_once, (1280, 560)),
    Picture("tenant", "/tenants/harbour-radio", _at_once, (1280, 1000)),
    Picture("try", "/try?pipeline=echo_media", _with_answer, (1280, 1000)),
    Picture("audit", "/audit", _at_once),
    Picture("plug", "/plug", _resumed),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/screenshots", description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES, metavar="DIR", help="write them here (default docs/img)")
    parser.add_argument("--only", action="append", choices=[each.name for each in PICTURES], metavar="NAME",
                        help="take this one only; may be repeated")  # fmt: skip
    parser.add_argument("--also", action="append", default=[], metavar="WIDTH,SCHEME",
                        help="as PNG, each page in this width and scheme as well, whole: 360,dark")  # fmt: skip
    asked = parser.parse_args()
    if chromium_program() is None:
        _say("no browser: scripts/browser brings one")
        return 1
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="omni-shots-") as directory:
            _say("starting a stack with a day behind it")
            with lively_stack(Path(directory) / "data") as lively, running_chromium("--hide-scrollbars") as browser:
                _take(browser, lively, asked.out, asked.only, [also.split(",") for also in asked.also])
    except (OmniJobsError, Error, AssertionError) as error:
        _say(str(error))
        return 1
    return 0


def _say(text: str) -> None:
    print(f"screenshots: {text}", file=sys.stderr, flush=True)


def _take(
    browser: Browser, lively: LivelyStack, out: Path, only: Sequence[str] | None, also: Sequence[Sequence[str]]
) -> None:
    total = 0
    for picture in PICTURES:
        if only is None or picture.name in only:
            with _opened(browser, lively, picture) as page:
                data = _small(page.screenshot())
                (out / f"{PREFIX}{picture.name}.webp").write_bytes(data)
                total += len(data)
                _say(f"{picture.name}: {len(data) / 1000:.0f} kB")
                for width, scheme in also:
                    page.set_viewport_size({"width": int(width), "height": 900})
                    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                    page.screenshot(path=out / f"{picture.name}-{width}-{scheme}.png", full_page=True, scale="css")
    _say(f"{total / 1000:.0f} kB in all, in {out}")


@contextmanager
def _opened(browser: Browser, lively: LivelyStack, picture: Picture) -> Iterator[Page]:
    width, height = picture.size
    port = lively.stack.url.rpartition(":")[2]
    with browser.new_context(
        base_url=f"http://localhost:{port}", viewport={"width": width, "height": height}, device_scale_factor=_SCALE,
        color_scheme=picture.scheme, reduced_motion="reduce", locale="en-GB", timezone_id="UTC",
    ) as context:  # fmt: skip
        page = context.new_page()
        page.goto(picture.path.format(told=lively.told, spoken=lively.spoken))
        picture.ready(page, lively)
        page.wait_for_load_state("load")
        yield page


def _small(png: bytes) -> bytes:
    """Return the picture as WebP, in the best quality that is small enough."""
    with Image.open(io.BytesIO(png)) as image:
        for quality in _QUALITY:
            buffer = io.BytesIO()
            image.convert("RGB").save(buffer, format="WEBP", quality=quality, method=6)
            if buffer.tell() <= MOST_BYTES:
                break
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
