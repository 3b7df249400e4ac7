"""``Visitor``: a page of a browser that looks at the dashboard, and what is heard of it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route

AXE = Path(__file__).with_name("vendor") / "axe.js"
BROKEN_WORDS = """
() => [...document.querySelectorAll("thead th")].flatMap(cell => {
  const broken = [], texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (!cell.querySelector(".visually-hidden") && texts.nextNode()) {
    for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const place = range.getBoundingClientRect(), around = cell.getBoundingClientRect();
      const isWithin = place.left > around.left - 1 && place.right < around.right + 1;
      if (range.getClientRects().length > 1 || !isWithin) broken.push(word[0]);
    }
  }
  return broken;
})
"""
SIZES = ((360, 740), (1600, 1000))
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, Scheme] = ("light", "dark")


@dataclass
class Visitor:
    """``left``: the URLs of other origins that pages asked for; ``violations``: what broke the policy, or a script."""

    context: BrowserContext
    page: Page
    left: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context.on("console", self._hear)
        self.context.on("weberror", lambda error: self.violations.append(str(error.error)))

    def _hear(self, message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text or "Content-Security-Policy" in message.text:
            self.violations.append(message.text)

    def block(self, route: Route) -> None:
        self.left.append(route.request.url)
        route.abort()

    @contextmanager
    def looks(self, width: int, height: int, scheme: Scheme) -> Iterator[None]:
        """Look by a screen of this size and scheme."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=scheme)
        yield

    def faults(self) -> list[str]:
        """What axe finds wrong with the page as it is.

        The script comes by the debugger, which the policy does not bind: the page itself stays as strict as it is.
        """
        if not self.page.evaluate("typeof window.axe === 'object'"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        # The violations alone, because to send what has passed takes five times as long as to check it.
        run = "async () => (await axe.run({resultTypes: ['violations']})).violations"
        found: list[dict[str, Any]] = self.page.evaluate(run)
        return [
            f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for each in found
            for node in each["nodes"]
        ]

    def broken_words(self) -> list[str]:
        """The words in heads of tables that go on in another line, or out of their cell."""
        found: list[str] = self.page.evaluate(BROKEN_WORDS)
        return found

    def is_wider_than_its_screen(self) -> bool:
        """Whether the page as a whole must be scrolled sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def check_looks(visitor: Visitor, path: str) -> None:
    """Open a page in each scheme and size: axe finds nothing, and the page fits its screen."""
    for width, height in SIZES:
        for scheme in SCHEMES:
            with visitor.looks(width, height, scheme):
                visitor.page.goto(path)
                assert visitor.faults() == [], (width, scheme)
                assert not visitor.is_wider_than_its_screen(), (width, scheme)


@contextmanager
def visiting(browser: Browser, port: int) -> Iterator[Visitor]:
    """Look at the dashboard of this port. At the end nothing has left its origin, and nothing broke the policy."""
    with browser.new_context(base_url=f"http://localhost:{port}") as context:
        visitor = Visitor(context, context.new_page())
        context.route(re.compile(rf"^(?!http://localhost:{port}/|data:|blob:)"), visitor.block)
        yield visitor
        assert visitor.left == []
        assert visitor.violations == []
