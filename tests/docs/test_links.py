"""Every link of every page leads to a file and a heading that are there, and docs/README.md names every page.

A link to another site is not followed, because tests have no internet: whether its page is still there, nobody checks.
It is well-formed, by https, and of a site of SITES, whom a person has looked at. On GitHub it names an issue.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")]
CODE = ("omni_jobs", "workers", "benchmarks", "demo", "scripts", "migrations", "stage_configs", "tests", "examples")
FILES = [path for folder in CODE for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".yaml", ".sh", ""}]
SINGLE = [ROOT / name for name in ("docker-compose.yml", ".env.example", "Dockerfile", "pyproject.toml")]
SITES = {
    "awscli.amazonaws.com",
    "docs.bentoml.com",
    "docs.nvidia.com",
    "docs.ray.io",
    "docs.vllm.ai",
    "github.com",
    "huggingface.co",
}
OWN = {"http://127.0.0.1:8000/"}  # what the reader has started


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@cache
def links(page: Path) -> list[tuple[Path, str]]:
    """The file and the anchor of each link to this repository."""
    found = [target.partition("#") for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in target]
    return [((page.parent / file).resolve() if file else page, anchor) for file, _, anchor in found]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = [re.sub(r"[^\w -]", "", title) for title in re.findall(r"^#+ (.*)", prose(page), re.MULTILINE)]
    seen: Counter[str] = Counter()
    found = set()
    for slug in (title.lower().replace(" ", "-") for title in titles):
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert [name_of(file) for file, _ in links(page) if not file.exists()] == []
    lost = [f"{name_of(file)}#{anchor}" for file, anchor in links(page) if anchor and anchor not in anchors(file)]
    assert lost == []


def links_to_sites() -> list[tuple[str, str]]:
    """The page and the target of each link to elsewhere, in either form that Markdown has."""
    found = []
    for page in PAGES:
        inline = [target for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" in target]
        found += [(name_of(page), target) for target in (*inline, *re.findall(r"<(\w+://[^>]*)>", prose(page)))]
    return found


def is_of_a_known_site(target: str) -> bool:
    """Whether a link is well-formed, by https, and of a site of SITES: no address, port, name or password in it."""
    url = urlsplit(target)
    if url.scheme != "https" or url.netloc not in SITES or not re.fullmatch(r"(/[\w.-]+)+/?", url.path):
        return False
    is_issue = re.fullmatch(r"(/[\w.-]+){2}/(issues|pull)/\d+", url.path)
    return not url.query and (url.netloc != "github.com" or is_issue is not None)


def test_links_to_other_sites_are_well_formed_and_known() -> None:
    found = links_to_sites()
    assert [(page, target) for page, target in found if target not in OWN and not is_of_a_known_site(target)] == []
    assert {urlsplit(target).netloc for _, target in found if target not in OWN} == SITES, "each is still linked to"


@pytest.mark.parametrize(
    "target",
    [
        "http://github.com/celery/celery/issues/1",
        "https://github.com/celery/celery/issues/",
        "https://github.com:8443/celery/celery/issues/1",
        "https://somebody@github.com/celery/celery/issues/1",
        "https://10.0.0.5/page",
        "https://docs.vllm.ai//en",
        "https://docs.vllm.ai/en/latest…",
        "https://docs.vllm.ai.example.com/en",
        "ftp://docs.vllm.ai/en",
    ],
)
def test_a_wrong_link_to_another_site_is_seen(target: str) -> None:
    assert not is_of_a_known_site(target)


def test_the_index_names_every_page_once() -> None:
    index = ROOT / "docs" / "README.md"
    named = Counter(file for file, _ in links(index) if file.parent != ROOT)
    assert {name_of(page) for page in ROOT.glob("docs/**/*.md") if page != index} == {name_of(page) for page in named}
    assert [name_of(page) for page, times in named.items() if times > 1] == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/operations/*.md")), ids=name_of)
def test_a_page_for_operators_begins_with_what_they_type(page: Path) -> None:
    """A title, at most one paragraph, and a block of code."""
    assert re.match(r"# .*\n\n(?:[^`#\n].*\n\n)?```", page.read_text(encoding="utf-8"))


def test_pages_that_code_names_are_there() -> None:
    named = {
        (name_of(path), page)
        for path in (*FILES, *SINGLE)
        if path.is_file() and "__pycache__" not in path.parts
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8", errors="replace"))
    }
    assert named
    assert sorted((path, page) for path, page in named if not (ROOT / page).is_file()) == []


def test_each_picture_is_shown_somewhere_and_is_small() -> None:
    shown = {file for page in PAGES for file, _ in links(page)}
    pictures = sorted((ROOT / "docs" / "img").iterdir())
    assert pictures
    assert [name_of(path) for path in pictures if path not in shown] == []
    assert [name_of(path) for path in pictures if path.stat().st_size > 150_000] == []
