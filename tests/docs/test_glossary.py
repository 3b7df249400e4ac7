"""Each word of docs/glossary.md is one of the code's."""

import re

import pytest

from tests.docs.pages import ROOT, page

CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for room in ("omni_jobs", "workers")
    for path in (ROOT / room).rglob("*")
    if path.suffix in (".py", ".sql")
)
ROWS = re.findall(r"^\| (?!Word |---)(.*?) \| (.*?) \|", page("glossary.md"), re.MULTILINE)
WORDS = [word for row, _ in ROWS for word in re.sub(r" \(.*?\)", "", row).split(", ")]
ALSO = [word for _, meaning in ROWS for word in re.findall(r"\*([\w ]+)\*", meaning)]


@pytest.mark.parametrize("word", WORDS + ALSO)
def test_the_code_has_the_word(word: str) -> None:
    pattern = r"\b" + r"[ _-]?".join(re.escape(part) for part in re.split(r"[ -]", word))
    assert re.search(pattern, CODE, re.IGNORECASE)


def test_no_word_has_two_rows() -> None:
    assert len(WORDS) == len(set(WORDS)) > 60
