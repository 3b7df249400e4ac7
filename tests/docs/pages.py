"""The pages of the docs, and what stands in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("examples/*/README.md")),
    )
}


def page(name: str) -> str:
    """The text of a page below docs/."""
    return PAGES[f"docs/{name}"]


def pages(folder: str) -> str:
    """The text of all pages of a folder below docs/."""
    return "\n".join(text for name, text in PAGES.items() if name.startswith(f"docs/{folder}/"))


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
